// How kernels divide the features of a layer: a block of threads has at most a tile of one head's.
#pragma once

#include "dofla/ops/cuda/attention_parts.h"
#include "dofla/ops/cuda/head_rows.cuh"
#include "dofla/ops/cuda/linear_attention_kernels.h"

namespace dofla::cuda {

// First feature of every head, then ΣM.
struct FeatureTable {
  int32_t first[kMostHeads + 1];
};

// The features of a block: `count` of head `head`, which has `head_count`.
struct BlockFeatures {
  int head, first, count, head_count;
  __device__ int groups() const { return (count + 15) / 16; }
};

__device__ __forceinline__ BlockFeatures features_of_block(const FeatureTable& table, int tile,
                                                           int part) {
  int head = 0;
  while (true) {
    const int first = table.first[head], count = table.first[head + 1] - first;
    const int parts = (count + tile - 1) / tile;
    if (part < parts) return {head, first + part * tile, min(tile, count - part * tile), count};
    part -= parts;
    ++head;
  }
}

// FeatureTable and tile counts of a layer; not valid for sizes that the kernels do not support.
struct FeatureParts {
  bool valid = false;
  int64_t total = 0;  // ΣM
  PartTable parts;    // of every head: blocks of at most `tile` features
  FeatureTable table;
  int64_t count = 0;  // of all parts
};

inline FeatureParts feature_parts(const LinearAttentionShape& s, const int64_t* counts) {
  FeatureParts f;
  if (s.heads < 1 || s.heads > kMostHeads || s.key_heads < 1 || s.heads % s.key_heads != 0 ||
      s.width < 1 || s.width > kWidestHead)
    return f;
  const int64_t tile = s.element == Element::kF32 && s.width > 64 ? 32 : 64;
  for (int64_t h = 0; h < s.heads; ++h) {
    if (counts[h] < 1) return f;
    f.table.first[h] = static_cast<int32_t>(f.total);
    f.parts.first[h] = static_cast<int32_t>(f.count);
    f.total += counts[h];
    f.count += (counts[h] + tile - 1) / tile;
  }
  f.table.first[s.heads] = static_cast<int32_t>(f.total);
  f.parts.first[s.heads] = static_cast<int32_t>(f.count);
  f.valid = true;
  return f;
}

}  // namespace dofla::cuda
