// How kernels divide the features of a layer: a block of threads has at most a tile of one head's.
#pragma once

#include "dofla/ops/cuda/attention_parts.h"
#include "dofla/ops/cuda/head_rows.cuh"
#include "dofla/ops/cuda/linear_attention_kernels.h"

namespace dofla::cuda {

// First feature of every query head, then of all; heads that share a state each count its features.
struct FeatureTable {
  int32_t first[kMostHeads + 1];
  int32_t sharing;  // query heads that read one state; 1 where features are tied

  // The first feature of a head's state, among those of all states.
  __host__ __device__ int first_of_state(int head) const {
    return first[head / sharing * sharing] / sharing;
  }
};

// The features of a block: `count` of query head `head`, which has `head_count`. They begin at
// `first` among the directions of queries and at `own` among states, keys' directions and log α.
struct BlockFeatures {
  int head, first, own, count, head_count;
  __device__ int groups() const { return (count + 15) / 16; }
};

__device__ __forceinline__ BlockFeatures features_of_block(const FeatureTable& table, int tile,
                                                           int part) {
  int head = 0;
  while (true) {
    const int first = table.first[head], count = table.first[head + 1] - first;
    const int parts = (count + tile - 1) / tile;
    if (part < parts)
      return {head, first + part * tile, table.first_of_state(head) + part * tile,
              min(tile, count - part * tile), count};
    part -= parts;
    ++head;
  }
}

// FeatureTable and tile counts of a layer; not valid for sizes that the kernels do not support.
struct FeatureParts {
  bool valid = false;
  int64_t total = 0;  // of all query heads
  int64_t own = 0;    // ΣM of all states
  PartTable parts;    // of every head: blocks of at most `tile` features
  FeatureTable table;
  int64_t count = 0;  // of all parts
};

inline FeatureParts feature_parts(const LinearAttentionShape& s,
                                  const LinearAttentionFeatures& features) {
  FeatureParts f;
  if (s.heads < 1 || s.heads > kMostHeads || s.key_heads < 1 || s.heads % s.key_heads != 0 ||
      s.width < 1 || s.width > kWidestHead)
    return f;
  const int64_t tile = s.element == Element::kF32 && s.width > 64 ? 32 : 64;
  const int64_t sharing = features.sharing(s);
  f.table.sharing = static_cast<int32_t>(sharing);
  for (int64_t h = 0; h < s.heads; ++h) {
    const int64_t count = features.counts[h / sharing];
    if (count < 1) return f;
    f.table.first[h] = static_cast<int32_t>(f.total);
    f.parts.first[h] = static_cast<int32_t>(f.count);
    f.total += count;
    f.count += (count + tile - 1) / tile;
  }
  f.own = f.total / sharing;
  f.table.first[s.heads] = static_cast<int32_t>(f.total);
  f.parts.first[s.heads] = static_cast<int32_t>(f.count);
  f.valid = true;
  return f;
}

}  // namespace dofla::cuda
