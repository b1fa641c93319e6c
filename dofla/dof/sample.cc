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
  const int64_t J = options_.samples, draws = options_.draws;
  if (!samples_.defined())
    samples_ = Tensor({static_cast<int64_t>(reservoirs_.size()), J, D}, DType::kF32, q.device());

  const int64_t group = config_.heads / config_.kv_heads;
  const int64_t pooled = config_.heads / heads_, of_token = 2 * pooled;  // vectors
  const int64_t first = offered_[static_cast<size_t>(layer)];
  std::vector<RowMove> queries, keys;
  for (int64_t i = 0; i < heads_ * draws; ++i) {
    const int64_t sample = layer * heads_ * draws + i;
    const std::vector<int64_t> places =
        take(reservoirs_[static_cast<size_t>(sample)], J, first, first + B * T * of_token);
    for (int64_t slot = 0; slot < J; ++slot) {
      const int64_t place = places[static_cast<size_t>(slot)];
      if (place < 0) continue;
      const int64_t b = place / (T * of_token), t = place / of_token % T, to = sample * J + slot;
      const int64_t head = i / draws * pooled + place % of_token / 2;
      if (place % 2 == 0)
        queries.push_back({(b * config_.heads + head) * T + t, to});
      else
        keys.push_back({(b * config_.kv_heads + head / group) * T + t, to});
    }
  }
  Tensor rows = samples_.reshape({samples_.size(0) * J, D});
  copy_rows(contiguous_heads(q).reshape({B * config_.heads * T, D}), queries, rows);
  copy_rows(contiguous_heads(k).reshape({B * config_.kv_heads * T, D}), keys, rows);
  offered_[static_cast<size_t>(layer)] += B * T * of_token;
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
