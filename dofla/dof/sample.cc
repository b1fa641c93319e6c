#include "dofla/dof/sample.h"

#include <cmath>

#include "dofla/core/parallel.h"
#include "dofla/ops/heads.h"
#include "dofla/ops/rows.h"

namespace dofla {

Reservoir::Reservoir(int64_t capacity, Random random) : capacity_(capacity), random_(random) {
  require(capacity > 0, "a reservoir of {} elements", capacity);
}

int64_t Reservoir::take() {
  if (next_ < capacity_) {  // the first elements all stay, for now
    const int64_t slot = next_++;
    if (next_ == capacity_) skip();
    return slot;
  }
  const auto slot = static_cast<int64_t>(random_.below(static_cast<uint64_t>(capacity_)));
  ++next_;
  skip();
  return slot;
}

void Reservoir::skip() {
  log_w_ += std::log1p(-random_.uniform()) / static_cast<double>(capacity_);
  const double passed_over =
      std::floor(std::log1p(-random_.uniform()) / std::log1p(-std::exp(log_w_)));
  // Far beyond any stream the quotient may be infinite or NaN: stop taking.
  constexpr double kNever = 0x1p60;
  next_ += static_cast<int64_t>(passed_over < kNever ? passed_over : kNever);
}

namespace {

// What places [begin, end) of the stream leave in each of the J slots: the place after `begin`, or
// −1 where the slot stays as it is. Of places that go to the same slot only the last counts.
std::vector<int64_t> take(Reservoir& reservoir, int64_t J, int64_t begin, int64_t end) {
  std::vector<int64_t> places(static_cast<size_t>(J), -1);
  while (reservoir.next() < end) {
    const int64_t place = reservoir.next() - begin;
    places[static_cast<size_t>(reservoir.take())] = place;
  }
  return places;
}

}  // namespace

QueryKeySampler::QueryKeySampler(const ModelConfig& config, const SampleOptions& options)
    : config_(config),
      options_(options),
      heads_(options.heads > 0 ? options.heads : config.heads),
      offered_(static_cast<size_t>(config.layers)) {
  require(options.samples > 0, "samples: expected at least 1, found {}", options.samples);
  require(options.draws > 0, "draws: expected at least 1, found {}", options.draws);
  require(config.heads % heads_ == 0, "samples of {} heads, of {} query heads", heads_,
          config.heads);
  const int64_t count = config.layers * heads_ * options.draws;
  reservoirs_.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    reservoirs_.emplace_back(options.samples, Random(options.seed, static_cast<uint64_t>(i)));
}

void QueryKeySampler::offer(int64_t layer, const Tensor& q, const Tensor& k) {
  require(layer >= 0 && layer < config_.layers, "layer {} of {}", layer, config_.layers);
  const int64_t B = q.size(0), T = q.size(2), D = config_.head_size;
  require_shape(q, {B, config_.heads, T, D}, "q");
  require_shape(k, {B, config_.kv_heads, T, D}, "k");
  const int64_t group = config_.heads / config_.kv_heads;
  const int64_t pooled = config_.heads / heads_, of_token = 2 * pooled;  // vectors
  std::vector<RowMove> queries, keys;
  draw(layer, B * T * of_token, [&](int64_t of_head, int64_t place, int64_t to) {
    const int64_t b = place / (T * of_token), t = place / of_token % T;
    const int64_t head = of_head * pooled + place % of_token / 2;
    if (place % 2 == 0)
      queries.push_back({(b * config_.heads + head) * T + t, to});
    else
      keys.push_back({(b * config_.kv_heads + head / group) * T + t, to});
  });
  Tensor rows = sample_rows(q.device());
  copy_rows(contiguous_heads(q).reshape({B * config_.heads * T, D}), queries, rows);
  copy_rows(contiguous_heads(k).reshape({B * config_.kv_heads * T, D}), keys, rows);
}

void QueryKeySampler::pass_over(int64_t tokens, const Device& device) {
  const Tensor nothing = Tensor::zeros({1, config_.head_size}, DType::kF32, device);
  Tensor rows = sample_rows(device);
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    std::vector<RowMove> taken;
    draw(layer, tokens * 2 * (config_.heads / heads_), [&](int64_t, int64_t, int64_t to) {
      taken.push_back({0, to});
    });
    copy_rows(nothing, taken, rows);
  }
}

void QueryKeySampler::sum(const Group& group) {
  if (samples_.defined()) group.sum(std::span(&samples_, 1));
}

template <class Put>
void QueryKeySampler::draw(int64_t layer, int64_t vectors, const Put& put) {
  const int64_t J = options_.samples, of_layer = heads_ * options_.draws;
  int64_t& first = offered_[static_cast<size_t>(layer)];
  for (int64_t sample = layer * of_layer; sample < (layer + 1) * of_layer; ++sample) {
    const std::vector<int64_t> places =
        take(reservoirs_[static_cast<size_t>(sample)], J, first, first + vectors);
    for (int64_t slot = 0; slot < J; ++slot)
      if (const int64_t place = places[static_cast<size_t>(slot)]; place >= 0)
        put(sample % of_layer / options_.draws, place, sample * J + slot);
  }
  first += vectors;
}

Tensor QueryKeySampler::sample_rows(const Device& device) {
  const auto count = static_cast<int64_t>(reservoirs_.size());
  if (!samples_.defined())
    samples_ = Tensor({count, options_.samples, config_.head_size}, DType::kF32, device);
  return samples_.reshape({count * options_.samples, config_.head_size});
}

Observer QueryKeySampler::observer() {
  return [this](int64_t layer, const Tensor& q, const Tensor& k, const Tensor&) {
    offer(layer, q, k);
  };
}

void QueryKeySampler::require_enough(int64_t layer) const {
  const int64_t offered = offered_[static_cast<size_t>(layer)];
  if (offered < options_.samples)
    fail(
        "{} samples a head were asked for, but the text gave only {} queries and keys: give more "
        "or longer sequences, or ask for fewer samples",
        options_.samples, offered);
}

Tensor QueryKeySampler::sample(int64_t layer, int64_t head, int64_t draw) const {
  require(layer >= 0 && layer < config_.layers && head >= 0 && head < heads_ && draw >= 0 &&
              draw < options_.draws,
          "no sample for layer {}, head {}, draw {}", layer, head, draw);
  require_enough(layer);
  const int64_t i = (layer * heads_ + head) * options_.draws + draw;
  return samples_.slice(i, i + 1).reshape({options_.samples, config_.head_size});
}

Tensor QueryKeySampler::samples() const {
  for (int64_t layer = 0; layer < config_.layers; ++layer) require_enough(layer);
  return samples_;
}

}  // namespace dofla
