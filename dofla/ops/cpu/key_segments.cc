#include "dofla/ops/cpu/key_segments.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "dofla/ops/cpu/sgemm.h"
#include "dofla/ops/cpu/vector_rows.h"

namespace dofla::cpu {

Segment make_segment(std::vector<int32_t> kept, int64_t first, int64_t queries) {
  for (int64_t j = first; j < first + queries; ++j) kept.push_back(static_cast<int32_t>(j));
  return {first, queries, std::move(kept)};
}

std::vector<Segment> segments_of(const Evictions& evictions, int64_t key_head,
                                 const HeadCache& cache, int64_t block) {
  std::vector<Segment> segments;
  const int64_t full = std::min(cache.limit, cache.keys);
  for (int64_t first = cache.before; first < full; first += kSegmentTile) {
    std::vector<int32_t> kept(static_cast<size_t>(first));
    std::iota(kept.begin(), kept.end(), 0);
    segments.push_back(make_segment(std::move(kept), first, std::min(kSegmentTile, full - first)));
  }
  const int32_t* leaves = evictions.leaves.data<int32_t>() + key_head * evictions.leaves.size(2);
  std::vector<int32_t> held(static_cast<size_t>(full));
  std::iota(held.begin(), held.end(), 0);
  for (int64_t n = 0; n < cache.times; ++n) {
    std::erase_if(held, [&](int32_t key) { return leaves[key] == n; });
    const int64_t first = cache.limit + n * block;
    segments.push_back(make_segment(held, first, std::min(block, cache.keys - first)));
    held = segments.back().keys;
  }
  return segments;
}

void collect(const float* x, const Segment& segment, int64_t width, std::vector<float>& to) {
  const std::vector<int32_t>& rows = segment.keys;
  to.resize(rows.size() * static_cast<size_t>(width));
  for (size_t r = 0; r < rows.size(); ++r)
    std::copy_n(x + rows[r] * width, width, to.data() + static_cast<int64_t>(r) * width);
}

void add_collected(const std::vector<float>& from, const Segment& segment, int64_t width,
                   float* to) {
  const std::vector<int32_t>& rows = segment.keys;
  for (size_t r = 0; r < rows.size(); ++r)
    add_scaled(from.data() + static_cast<int64_t>(r) * width, 1.0f, width, to + rows[r] * width);
}

void logits_of(const Segment& segment, const float* q, const float* k, int64_t width,
               std::vector<float>& logits) {
  logits.resize(static_cast<size_t>(segment.queries * segment.count()));
  const float scale = 1 / std::sqrt(static_cast<float>(width));
  sgemm({.transpose_b = true, .alpha = scale}, segment.queries, segment.count(), width, q, width, k,
        width, logits.data(), segment.count());
}

std::vector<int64_t> least_attended(const ExactKeys& exact, const float* score, int64_t held) {
  std::vector<int64_t> places(static_cast<size_t>(held - exact.newest() - exact.sinks));
  std::iota(places.begin(), places.end(), exact.sinks);
  // Stable: of equal scores the older leaves.
  std::stable_sort(places.begin(), places.end(),
                   [&](int64_t a, int64_t b) { return score[a] < score[b]; });
  places.resize(static_cast<size_t>(exact.block));
  std::sort(places.begin(), places.end());
  return places;
}

}  // namespace dofla::cpu
