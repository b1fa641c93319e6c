#include <algorithm>
#include <vector>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/key_segments.h"
#include "dofla/ops/cpu/vector_rows.h"

namespace dofla::cpu {
namespace {

// The cache of one key head of one sequence as tokens come and leave.
class Cache {
 public:
  Cache(const ExactKeys& exact, int64_t before, const float* score) : exact_(exact) {
    for (int64_t j = 0; j < before; ++j) {
      held_.push_back(static_cast<int32_t>(j));
      score_.push_back(score[j]);
    }
  }

  const std::vector<int32_t>& held() const { return held_; }
  const std::vector<float>& score() const { return score_; }

  // The `block` least attended leave, to `order`.
  void evict(int32_t* order) {
    const std::vector<int64_t> places =
        least_attended(exact_, score_.data(), static_cast<int64_t>(held_.size()));
    for (size_t i = places.size(); i-- > 0;) {
      order[i] = held_[static_cast<size_t>(places[i])];
      held_.erase(held_.begin() + places[i]);
      score_.erase(score_.begin() + places[i]);
    }
  }

  // Tokens [first, first + count) come and attend; q is [group, stride, D] at the first of them.
  void attend(const float* q, int64_t group, int64_t stride, const float* k, int64_t width,
              int64_t first, int64_t count) {
    const Segment segment = make_segment(held_, first, count);
    collect(k, segment, width, keys_);
    held_ = segment.keys;
    score_.resize(held_.size(), first_score(exact_, group));
    std::vector<float> sums(static_cast<size_t>(count * segment.count()), 0.0f);
    for (int64_t head = 0; head < group; ++head) {
      logits_of(segment, q + head * stride * width, keys_.data(), width, logits_);
      for (int64_t r = 0; r < count; ++r) {
        float* row = logits_.data() + r * segment.count();
        const int64_t seen = segment.seen(r);
        const float total = exp_and_sum(row_max(row, seen), seen, row);
        add_scaled(row, 1 / total, seen, sums.data() + r * segment.count());
      }
    }
    for (int64_t r = 0; r < count; ++r) {
      scale_row(static_cast<float>(exact_.decay), segment.seen(r), score_.data());
      add_scaled(sums.data() + r * segment.count(), 1.0f, segment.seen(r), score_.data());
    }
  }

 private:
  const ExactKeys& exact_;
  std::vector<int32_t> held_;
  std::vector<float> score_;
  std::vector<float> keys_, logits_;
};

}  // namespace

Evictions evict_least_attended(const Tensor& q, const Tensor& k, const ExactKeys& exact,
                               const Tensor& score) {
  const int64_t batch = k.size(0), heads = k.size(1), keys = k.size(2), width = k.size(3);
  const int64_t tokens = q.size(2), group = q.size(1) / heads, before = keys - tokens;
  const int64_t times = times_evicted(exact, keys), stay = exact.keys - exact.block;
  const int64_t left = keys - times * exact.block, full = std::min(exact.keys, keys);
  Evictions out = {Tensor({batch, heads, times * exact.block}, DType::kI32),
                   Tensor({batch, heads, times, stay}, DType::kI32),
                   Tensor({batch, heads, left}, DType::kI32), Tensor({batch, heads, left})};
  int32_t* const order = out.order.data<int32_t>();
  int32_t* const kept = out.kept.data<int32_t>();
  int32_t* const held = out.held.data<int32_t>();
  float* const scores = out.score.data<float>();
  parallel_for(batch * heads, [&](int64_t head) {
    const SingleThreaded alone;
    const float* queries = q.data<float>() + head * group * tokens * width;
    const float* own = k.data<float>() + head * keys * width;
    Cache cache(exact, before, before == 0 ? nullptr : score.data<float>() + head * before);
    const auto attend = [&](int64_t first, int64_t count) {
      cache.attend(queries + (first - before) * width, group, tokens, own, width, first, count);
    };
    for (int64_t first = before; first < full; first += kSegmentTile)
      attend(first, std::min(kSegmentTile, full - first));
    for (int64_t n = 0; n < times; ++n) {
      cache.evict(order + (head * times + n) * exact.block);
      std::copy_n(cache.held().data(), stay, kept + (head * times + n) * stay);
      const int64_t first = exact.keys + n * exact.block;
      attend(first, std::min(exact.block, keys - first));
    }
    std::copy_n(cache.held().data(), left, held + head * left);
    std::copy_n(cache.score().data(), left, scores + head * left);
  });
  return out;
}

}  // namespace dofla::cpu
