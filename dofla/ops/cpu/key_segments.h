// A sequence falls into segments between which keys leave: the first lasts until the cache is full,
// every other `block` tokens. Within a segment attention is softmax over a list of keys that ends
// with the segment's own.
#pragma once

#include <cstdint>
#include <vector>

#include "dofla/ops/exact_keys.h"

namespace dofla::cpu {

// Query r is key `first + r` of the sequence and sees the keys up to its own, which is
// keys[keys.size() − queries + r].
struct Segment {
  int64_t first, queries;
  std::vector<int32_t> keys;

  int64_t count() const { return static_cast<int64_t>(keys.size()); }
  int64_t seen(int64_t row) const { return count() - queries + row + 1; }
};

// The first segment may be long: it is taken so many queries at a time.
inline constexpr int64_t kSegmentTile = 64;

// The tokens [first, first + queries) after the keys `kept`.
Segment make_segment(std::vector<int32_t> kept, int64_t first, int64_t queries);

// All segments of a key head (b·Hkv + h).
std::vector<Segment> segments_of(const Evictions& evictions, int64_t key_head,
                                 const HeadCache& cache, int64_t block);

// The segment's rows of x, [N, D], one after another.
void collect(const float* x, const Segment& segment, int64_t width, std::vector<float>& to);
// Adds them back to where they came from.
void add_collected(const std::vector<float>& from, const Segment& segment, int64_t width,
                   float* to);

// q·k/√D of a segment's queries, [queries, keys]; beyond what a query sees they mean nothing.
void logits_of(const Segment& segment, const float* q, const float* k, int64_t width,
               std::vector<float>& logits);

// Which `block` of a full cache leave: places in the cache, ascending.
std::vector<int64_t> least_attended(const ExactKeys& exact, const float* score, int64_t held);

}  // namespace dofla::cpu
