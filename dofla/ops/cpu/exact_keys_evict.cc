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
  Cache(ExactKeys exact, int64_t before, const float* score) : exact_(std::move(exact)) {
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
  const ExactKeys exact_;
  std::vector<int32_t> held_;
  std::vector<float> score_;
  std::vector<float> keys_, logits_;
};

}  // namespace

Evictions evict_least_attended(const Tensor& q, const Tensor& k, const ExactKeys& exact,
                               const std::vector<HeadCache>& caches, const Tensor& score) {
  const int64_t batch = k.size(0), heads = k.size(1), row = k.size(2), width = k.size(3);
  const int64_t tokens = q.size(2), group = q.size(1) / heads, block = exact.block;
  Evictions out = new_evictions(caches, batch, block, {});
  const int64_t places = out.score.size(1);
  int32_t* const order = out.order.data<int32_t>();
  int32_t* const held = out.held.data<int32_t>();
  float* const scores = out.score.data<float>();
  std::fill_n(order, out.order.count(), -1);
  std::fill_n(held, out.held.count(), -1);
  std::fill_n(scores, out.score.count(), 0.0f);
  parallel_for(batch * heads, [&](int64_t head) {
    const SingleThreaded alone;
    const int64_t b = head / heads, h = head % heads;
    const HeadCache& own = caches[static_cast<size_t>(h)];
    const float* queries = q.data<float>() + head * group * tokens * width;
    const float* keys = k.data<float>() + head * row * width;
    const int64_t place = b * places + own.first;
    Cache cache(exact.of_head(h), own.before,
                own.before == 0 ? nullptr : score.data<float>() + place);
    const auto attend = [&](int64_t first, int64_t count) {
      cache.attend(queries + (first - own.before) * width, group, tokens, keys, width, first,
                   count);
    };
    const int64_t full = std::min(own.limit, own.keys);
    for (int64_t first = own.before; first < full; first += kSegmentTile)
      attend(first, std::min(kSegmentTile, full - first));
    for (int64_t n = 0; n < own.times; ++n) {
      cache.evict(order + head * out.order.size(2) + n * block);
      const int64_t first = own.limit + n * block;
      attend(first, std::min(block, own.keys - first));
    }
    std::ranges::transform(cache.held(), held + place,
                           [&](int32_t key) { return static_cast<int32_t>(h * row) + key; });
    std::ranges::copy(cache.score(), scores + place);
  });
  list_evictions(caches, block, out);
  return out;
}

}  // namespace dofla::cpu
