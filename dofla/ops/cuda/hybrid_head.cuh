// One key head of hybrid attention and one token: what a step knows of them, and what it keeps in
// shared memory.
#pragma once

#include "dofla/ops/cuda/hybrid_slots.cuh"
#include "dofla/ops/cuda/least_attended.cuh"
#include "dofla/ops/cuda/linear_attention_step.cuh"
#include "dofla/ops/cuda/query_tiles.cuh"

namespace dofla::cuda {

// The key head with its query heads, before the token comes.
template <class T>
struct HybridHead {
  T *keys, *values;  // [K, D], the oldest first
  float* score;      // [K]
  int limit, held;   // K, and how many keys there are
  int block, sinks, recent;
  bool evicts;    // whether keys ever leave; a cache that grows has none that do
  bool by_score;  // whether those least attended do
  bool any_left;  // whether some are in the state of the features when this token attends
  float first_score, decay;
  float scale;  // of q·k
  int group, width;

  // Features: those of its first state come first.
  const int32_t* pairs;  // [group + 1]: of every query head the first row of its directions
  int sharing;           // query heads that read one state
  const float *z, *log_alpha, *directions;
  LinearAttentionSums sums;
  float inner_scale, norm_scale;
  float norm_weight;  // of keys
  bool packed;        // rows of z and b come in float4
  bool packed_cache;  // rows of the cache come in packs

  __device__ bool full() const { return evicts && held == limit; }
  // Where the new key goes.
  __device__ int place() const { return full() ? limit - block : held; }
  // Of query head i the first pair of a feature with its direction, counted from those of `from`.
  __device__ int first_pair(int i, int from) const { return pairs[i] - pairs[from]; }
};

struct HybridSizes {
  int limit, block;
  bool evicts;
  int queries;        // that attend together
  int pairs, states;  // of their directions, and of the features that these look at
  int warps;
};

// Lists of a length that only the layer knows: where they begin in shared memory. Keys are counted
// in the order of the cache before the token comes; the new one follows them.
struct HybridLists {
  int stride;                           // of logits
  int logits;                           // [queries, stride], then weights
  int values;                           // [groups of warps, queries, kWidth]: what they have found
  int feature_logits, feature_weights;  // [pairs]
  int feature_offsets, feature_weight_sums;  // [states]: all of log φ̃ but the product; a
  int score;                                 // [K + 1]
  int rated;                                 // [K, in fours]
  int found;    // [block, in fours]: where those that leave are, in any order
  int leaving;  // [block]: the same in order
  int moved;    // [K + 1]: where keys go, −1 for those that leave
  int end;

  __host__ __device__ static HybridLists from(int begin, const HybridSizes& s) {
    HybridLists l;
    const auto take = [&begin](int count) {
      const int at = begin;
      begin += in_fours(count) * 4;
      return at;
    };
    const int evicting = s.evicts ? s.limit + 1 : 0;
    // Rows of adjacent queries begin eight banks apart.
    l.stride = (s.limit + 1 + 31) / 32 * 32 + 8;
    l.logits = take(s.queries * l.stride);
    l.values = take(s.queries * s.warps * 16);
    l.feature_logits = take(s.pairs), l.feature_weights = take(s.pairs);
    l.feature_offsets = take(s.states), l.feature_weight_sums = take(s.states);
    l.score = take(evicting), l.rated = take(evicting), l.moved = take(evicting);
    l.found = take(s.evicts ? s.block : 0), l.leaving = take(s.evicts ? s.block : 0);
    l.end = begin;
    return l;
  }
};

template <class List>
__device__ __forceinline__ List* list_at(int offset) {
  return reinterpret_cast<List*>(shared_memory() + offset);
}

// What has a fixed size. A query has kQueryPartCount bf16 parts.
template <class T, int kWidth, int kQueryPartCount, int kWarps>
struct HybridShared {
  static constexpr int kTiles = kWidth / 16;       // of coordinates of values, one a warp
  static constexpr int kGroups = kWarps / kTiles;  // of warps that share the keys

  HybridHead<T> head;
  HybridLists lists;
  HybridPacking packing;                 // of the query heads that attend, up to and with
  HybridSlot slot;                       // the one that is there
  int first_pair[kQueriesTogether + 1];  // of the query heads that attend
  float shift[kQueriesTogether];         // that their logits of keys are given more
  QueryParts<kQueryPartCount, kWidth> parts;
  __align__(16) float queries[kQueriesTogether][kWidth];  // the same in float32
  __align__(16) T newest[2][kWidth];                      // the token's key and value
  float most[kWarps][kQueriesTogether];                   // logits of keys that a warp has seen
  float2 totals[kWarps];              // of a warp's query: weights of keys, and of features
  float2 inverse[kQueriesTogether];   // of a query's weights of keys, and of all its weights
  float of_features[kWarps][kWidth];  // of a warp's query
};

}  // namespace dofla::cuda
