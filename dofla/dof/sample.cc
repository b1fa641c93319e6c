#include "dofla/dof/sample.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/parallel.h"

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

QueryKeySampler::QueryKeySampler(const ModelConfig& config, const SampleOptions& options)
    : config_(config), options_(options), offered_(static_cast<size_t>(config.layers)) {
  require(options.samples > 0, "samples: expected at least 1, found {}", options.samples);
  require(options.draws > 0, "draws: expected at least 1, found {}", options.draws);
  const int64_t count = config.layers * config.heads * options.draws;
  head_samples_.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    head_samples_.push_back(
        {Reservoir(options.samples, Random(options.seed, static_cast<uint64_t>(i))), {}});
}

void QueryKeySampler::offer(int64_t layer, const Tensor& q, const Tensor& k) {
  require(layer >= 0 && layer < config_.layers, "layer {} of {}", layer, config_.layers);
  const int64_t B = q.size(0), T = q.size(2), D = config_.head_size;
  require_shape(q, {B, config_.heads, T, D}, "q");
  require_shape(k, {B, config_.kv_heads, T, D}, "k");
  const Tensor all_queries = q.to(Device()).to(DType::kF32);
  const Tensor all_keys = k.to(Device()).to(DType::kF32);
  const float* queries = all_queries.data<float>();
  const float* keys = all_keys.data<float>();

  const int64_t group = config_.heads / config_.kv_heads;
  const int64_t first = offered_[static_cast<size_t>(layer)];
  const int64_t a_head = options_.draws;
  parallel_for(config_.heads * a_head, [&](int64_t i) {
    const int64_t head = i / a_head;
    HeadSample& into = head_samples_[static_cast<size_t>(layer * config_.heads * a_head + i)];
    for (int64_t b = 0; b < B; ++b) {
      const float* head_queries = queries + (b * config_.heads + head) * T * D;
      const float* head_keys = keys + (b * config_.kv_heads + head / group) * T * D;
      const int64_t begin = first + b * 2 * T;
      while (into.reservoir.next() < begin + 2 * T) {
        const int64_t place = into.reservoir.next() - begin;
        const float* row = (place % 2 == 0 ? head_queries : head_keys) + place / 2 * D;
        const int64_t slot = into.reservoir.take();
        const auto end = static_cast<size_t>((slot + 1) * D);
        if (into.rows.size() < end) into.rows.resize(end);
        std::copy_n(row, D, into.rows.data() + slot * D);
      }
    }
  });
  offered_[static_cast<size_t>(layer)] += B * 2 * T;
}

Observer QueryKeySampler::observer() {
  return [this](int64_t layer, const Tensor& q, const Tensor& k, const Tensor&) {
    offer(layer, q, k);
  };
}

const QueryKeySampler::HeadSample& QueryKeySampler::at(int64_t layer, int64_t head,
                                                       int64_t draw) const {
  require(layer >= 0 && layer < config_.layers && head >= 0 && head < config_.heads && draw >= 0 &&
              draw < options_.draws,
          "no sample for layer {}, head {}, draw {}", layer, head, draw);
  return head_samples_[static_cast<size_t>((layer * config_.heads + head) * options_.draws + draw)];
}

Tensor QueryKeySampler::sample(int64_t layer, int64_t head, int64_t draw) const {
  const HeadSample& from = at(layer, head, draw);
  const int64_t offered = offered_[static_cast<size_t>(layer)];
  if (offered < options_.samples)
    fail(
        "{} samples a head were asked for, but the text gave only {} queries and keys: give more "
        "or longer sequences, or ask for fewer samples",
        options_.samples, offered);
  return Tensor::borrow(from.rows.data(), {options_.samples, config_.head_size}, DType::kF32,
                        nullptr);
}

}  // namespace dofla
