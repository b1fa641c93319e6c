// Attention to a bounded set of exact keys. A cache holds at most K keys of a key head. When it is
// full and another token comes, `block` of them leave together: of those that are neither among the
// first (sinks) nor among the newest, the ones that were attended least of late. Which keys leave
// is a function of queries and keys alone, so that the parallel form can ask for it first and then
// compute all blocks side by side; docs/hybrid.md has the picture.
//
// Keys are counted from the oldest that the cache holds when the call begins: of N keys the last T
// are new and have queries. Token t of them is key N − T + t, and sees those up to its own that
// have not left. The first to leave do so before key K comes, the next before key K + block, …
#pragma once

#include <numeric>
#include <vector>

#include "dofla/core/names.h"
#include "dofla/ops/attention_tape.h"
#include "dofla/ops/gradient_buffers.h"

namespace dofla {

enum class KeyPolicy {
  kAttended,  // the least attended lately leave
  kRecent,    // the oldest leave: a window
};

template <>
struct Names<KeyPolicy> {
  static constexpr std::string_view kWhat = "policy of exact keys";
  static constexpr std::array kAll = {Name{KeyPolicy::kAttended, "attended"},
                                      Name{KeyPolicy::kRecent, "recent"}};
};

struct ExactKeys {
  int64_t keys = 0;    // K: the most that a key head holds; 0: none, linear attention alone
  int64_t sinks = 4;   // the first tokens, which never leave
  int64_t recent = 0;  // the newest, which do not leave yet; 0: half of K
  int64_t block = 8;   // how many leave together: a divisor of 64
  KeyPolicy policy = KeyPolicy::kAttended;
  // A key's score is its attention from all query heads of its group, summed over the queries since
  // it came; a query so many tokens ago counts decay to that power. It begins with first_score().
  double decay = 0.995;
  // K of every key head, where they differ; `keys` is then the largest. The operations below take
  // heads that hold equally many: ops/head_parts.h.
  std::vector<int64_t> head_keys = {};

  int64_t newest() const { return recent > 0 ? recent : keys / 2; }  // that do not leave yet
  bool empty() const { return keys == 0; }
  // The same kind with K keys in every head.
  ExactKeys with_keys(int64_t count) const {
    return {count, sinks, recent, block, policy, decay, {}};
  }
  // Of all key heads of a layer together.
  int64_t total_keys(int64_t key_heads) const {
    return head_keys.empty() ? key_heads * keys
                             : std::accumulate(head_keys.begin(), head_keys.end(), int64_t{0});
  }
  bool operator==(const ExactKeys&) const = default;
};

// The fewest keys that a cache of this kind can have: some can leave when it is full.
inline int64_t least_keys(const ExactKeys& kind) {
  return kind.recent > 0 ? kind.sinks + kind.recent + kind.block : 2 * (kind.sinks + kind.block);
}

// Throws std::invalid_argument unless at least `block` keys can leave a full cache and the rest is
// sound.
void require_valid(const ExactKeys& exact);

// The score that a new key begins with: that of one which `group` query heads have always attended
// half as much as the average of a full cache. Without it a key leaves before it could be attended.
// 0 for kRecent, whose scores stay 0.
float first_score(const ExactKeys& exact, int64_t group);

// What the keys, values and scores of a key head take, keys in the 16 bits that they have on a GPU.
constexpr int64_t exact_key_bytes(int64_t keys, int64_t width) {
  return keys * (2 * width * 2 + static_cast<int64_t>(sizeof(float)));
}

// How many keys of a sequence of so many tokens are still held.
int64_t keys_held(const ExactKeys& exact, int64_t tokens);
// How many times `block` keys have left when N keys have come.
int64_t times_evicted(const ExactKeys& exact, int64_t keys);

// What leaves and what stays. E = times_evicted(exact, N).
struct Evictions {
  Tensor order;  // [B, Hkv, E · block] I32: keys in the order in which they leave, of one time the
                 // oldest first
  Tensor kept;   // [B, Hkv, E, K − block] I32: those that stay each time, oldest first
  Tensor held;   // [B, Hkv, N − E · block] I32: those that are held in the end, oldest first
  Tensor score;  // [B, Hkv, N − E · block] F32: their scores then
};

// The scores use softmax over the keys that are held, without what has left. `score` is that of the
// N − T keys from before. Of equal scores the older key leaves first. For kRecent nothing is
// computed from q and k, and the scores are 0.
Evictions evict_keys(const Tensor& q,  // [B, H, T, D]
                     const Tensor& k,  // [B, Hkv, N, D]
                     const ExactKeys& exact,
                     const Tensor& score = {});  // [B, Hkv, N − T] F32, or undefined if N = T

// Softmax attention to the keys that are held. Returns [B, T, H, D].
Tensor exact_attention(const Tensor& q,  // [B, H, T, D]
                       const Tensor& k,  // [B, Hkv, N, D]
                       const Tensor& v,  // [B, Hkv, N, D]
                       const ExactKeys& exact, const Evictions& evictions,
                       Tensor* log_sum);  // receives [B, H, T] F32: log Σ exp(q·k/√D)

struct ExactAttentionGradients {
  Tensor q;  // [B, H, T, D]
  Tensor k;  // [B, Hkv, T, D]
  Tensor v;  // [B, Hkv, T, D]
};

// Gradients of whole sequences, N = T. The tape's out and log_sum may be those of attention to more
// keys, of which these are a part: the gradients are then this part's. Which keys leave is a
// constant.
ExactAttentionGradients exact_attention_backward(const Tensor& q,  // [B, H, T, D]
                                                 const Tensor& k,  // [B, Hkv, T, D]
                                                 const Tensor& v,  // [B, Hkv, T, D]
                                                 const ExactKeys& exact, const Evictions& evictions,
                                                 const Tensor& grad_out,  // [B, T, H, D]
                                                 const AttentionTape& tape,
                                                 const GradientBuffers& buffers = {});

// What a device has to implement; ops/exact_keys.cc checks the arguments and picks the device.
struct ExactKeysBackend {
  // Only for kAttended.
  Evictions (*evict)(const Tensor& q, const Tensor& k, const ExactKeys& exact, const Tensor& score);
  Tensor (*forward)(const Tensor& q, const Tensor& k, const Tensor& v, const ExactKeys& exact,
                    const Evictions& evictions, Tensor* log_sum);
  ExactAttentionGradients (*backward)(const Tensor& q, const Tensor& k, const Tensor& v,
                                      const ExactKeys& exact, const Evictions& evictions,
                                      const Tensor& grad_out, const AttentionTape& tape,
                                      const GradientBuffers& buffers);
};
namespace cpu {
extern const ExactKeysBackend kExactKeys;
Evictions evict_least_attended(const Tensor& q, const Tensor& k, const ExactKeys& exact,
                               const Tensor& score);
}  // namespace cpu
namespace cuda {
extern const ExactKeysBackend kExactKeys;
}

}  // namespace dofla
