// Which keys of a bounded cache leave, and attention to those that are held (ops/exact_keys.h). The
// same input gives the same bits. Nothing is allocated and nothing waits: the caller brings the
// workspace.
#pragma once

#include "dofla/ops/cuda/head_rows.h"

namespace dofla::cuda {

constexpr int kMostKeyHeads = 128;
constexpr int kTokensTogether = 64;  // as ops/exact_keys.h has them
constexpr int32_t kStays = 0x7fffffff;

// What the tokens of a call find in the cache of a key head and do to it, as HeadCache has it.
struct KeyCache {
  int32_t limit;       // K
  int32_t before;      // keys that it holds when they come; with the new ones it has N
  int32_t times;       // E: how often keys leave
  int32_t rounds;      // how often kTokensTogether attend together
  int32_t first_kept;  // where its part of `kept` begins
  int32_t first;       // its first place in the cache of the layer
  float first_score;   // that a new key begins with
};

// Of N keys the last T have queries. Key head h serves the query heads h·H/Hkv to (h+1)·H/Hkv − 1.
struct ExactKeysShape {
  Element element;
  int64_t batch, heads, key_heads;  // Hkv <= kMostKeyHeads
  int64_t queries;                  // T
  int64_t keys;                     // the most that a head has
  int64_t width;                    // D <= kWidestHead
  int64_t block;                    // how many leave together
  KeyCache cache[kMostKeyHeads];

  // Over all key heads.
  int64_t most_held() const { return most(&KeyCache::limit); }
  int64_t most_times() const { return most(&KeyCache::times); }
  int64_t places() const { return last().first + last().limit; }
  int64_t kept() const { return last().first_kept + last().rounds * (last().limit - block); }

 private:
  const KeyCache& last() const { return cache[key_heads - 1]; }
  int64_t most(int32_t KeyCache::*what) const {
    int64_t found = 0;
    for (int64_t h = 0; h < key_heads; ++h)
      if (cache[h].*what > found) found = cache[h].*what;
    return found;
  }
};

struct EvictionRule {
  int64_t sinks;
  int64_t recent;  // 0: half of a head's keys
  double decay;
};

struct EvictionsOut {
  int32_t* order;   // [B, Hkv, max E · block]: −1 after a head's last
  int32_t* leaves;  // [B, Hkv, keys]: when a key leaves, or kStays
  int32_t* kept;    // [B, Σ rounds (K − block)]
  int32_t* held;    // [B, ΣK]: rows of k as [B, Hkv · keys, D], or −1
  float* score;     // [B, ΣK]
};
// Of them, what attention needs.
struct KeptKeys {
  const int32_t *leaves, *kept;
};

// Chooses by the scores. The block of a key head has its keys in shared memory; in float32 they go
// to the workspace where there are too many. False for more bf16 keys than fit.
bool eviction_fits(const ExactKeysShape& shape);
int64_t eviction_workspace_bytes(const ExactKeysShape& shape);
cudaError_t launch_evict_keys(const ExactKeysShape& shape, const EvictionRule& rule,
                              const HeadRows& q,   // [B, H, T, D]
                              const HeadRows& k,   // [B, Hkv, keys, D]
                              const float* score,  // [B, ΣK], or null if nothing came before
                              const EvictionsOut& evictions, void* workspace, cudaStream_t stream);

// Softmax attention to the keys that are held.
cudaError_t launch_exact_attention(const ExactKeysShape& shape,
                                   const HeadRows& q,  // [B, H, T, D]
                                   const HeadRows& k,  // [B, Hkv, keys, D]
                                   const HeadRows& v,  // [B, Hkv, keys, D]
                                   const KeptKeys& kept,
                                   const HeadRowsOut& out,  // [B, H, T, D], in any order
                                   float* log_sum,          // [B, H, T]: log Σ exp
                                   cudaStream_t stream);

struct ExactAttentionGradientsOut {
  HeadRowsOut q;  // [B, H, T, D]
  HeadRowsOut k;  // [B, Hkv, T, D]
  HeadRowsOut v;  // [B, Hkv, T, D]
};

int64_t exact_attention_backward_workspace_bytes(const ExactKeysShape& shape);

// Gradients of whole sequences, keys = T. `out` and `log_sum` may be those of attention to more
// keys.
cudaError_t launch_exact_attention_backward(const ExactKeysShape& shape, const HeadRows& q,
                                            const HeadRows& k, const HeadRows& v,
                                            const KeptKeys& kept, const HeadRows& out,
                                            const float* log_sum, const HeadRows& grad_out,
                                            const ExactAttentionGradientsOut& gradients,
                                            void* workspace, cudaStream_t stream);

}  // namespace dofla::cuda
