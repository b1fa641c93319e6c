// Attention to a bounded set of exact keys. A cache holds at most K keys of a key head. When it is
// full and another token comes, `block` of them leave together: of those that are neither among the
// first (sinks) nor among the newest, the ones that were attended least of late. Which keys leave
// is a function of queries and keys alone, so that the parallel form can ask for it first and then
// compute all blocks side by side; docs/hybrid.md has the picture.
//
// Keys of a head are counted from the oldest that its cache holds when the call begins: of N keys
// the last T are new and have queries. Token t of them is key N − T + t, and sees those up to its
// own that have not left. The first to leave do so before key K comes, the next before key
// K + block, … Heads may hold different numbers of keys, and then have different N, too.
#pragma once

#include <limits>
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
  // K of every key head, where they differ: by multiples of `block`, so that keys leave all heads
  // at the same tokens. `keys` is then the largest.
  std::vector<int64_t> head_keys = {};

  int64_t newest() const { return recent > 0 ? recent : keys / 2; }  // that do not leave yet
  bool empty() const { return keys == 0; }
  // The same kind with K keys in every head.
  ExactKeys with_keys(int64_t count) const {
    return {count, sinks, recent, block, policy, decay, {}};
  }
  ExactKeys of_head(int64_t head) const {
    return with_keys(head_keys.empty() ? keys : head_keys[static_cast<size_t>(head)]);
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

// The most keys of a head that are planned and measured. A GPU keeps lists of all keys of a head in
// shared memory, eight numbers a key when a token comes (docs/kernels.md, "Exact keys").
inline constexpr int64_t kMostPlannedKeys = 3072;

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

// How many keys of a sequence of so many tokens are still held; of heads that hold equally many.
int64_t keys_held(const ExactKeys& exact, int64_t tokens);
// How many times `block` keys have left when N keys have come.
int64_t times_evicted(const ExactKeys& exact, int64_t keys);

// After the cache is full, tokens attend so many together: kernels look at the keys that any of
// them sees, and at when a key leaves.
inline constexpr int64_t kTokensTogether = 64;

// What T new tokens find in the cache of a key head and do to it.
struct HeadCache {
  int64_t limit;       // K
  int64_t before;      // keys that it holds when they come
  int64_t keys;        // N = before + T
  int64_t times;       // E: how often `block` keys leave
  int64_t first_kept;  // where its part of Evictions::kept begins
  int64_t first;       // its first place in the cache of the layer

  int64_t first_left() const { return limit - before; }  // first token that sees keys which left
  // How many times tokens attend together after the cache is full: E · block in kTokensTogether.
  int64_t rounds() const {
    return keys <= limit ? 0 : (keys - limit + kTokensTogether - 1) / kTokensTogether;
  }
};
// Of every key head of a layer, after `past` tokens. Throws std::invalid_argument if the kind is of
// another number of heads.
std::vector<HeadCache> head_caches(const ExactKeys& exact, int64_t key_heads, int64_t past,
                                   int64_t tokens);

inline constexpr int32_t kStays = std::numeric_limits<int32_t>::max();

// What leaves and what stays. Heads that hold more keys lose fewer.
struct Evictions {
  Tensor order;   // [B, Hkv, R] I32: keys in the order in which they leave, of one time the oldest
                  // first; R = max E · block, −1 after a head's last
  Tensor leaves;  // [B, Hkv, max N] I32: how many times keys have left before a key does; kStays
                  // if it is held in the end
  Tensor kept;    // [B, Σ rounds (K − block)] I32: those that stay before every kTokensTogether
                  // tokens, oldest first, head by head
  Tensor held;   // [B, 1, ΣK] I32: what every place of the cache holds in the end, the oldest of a
                 // head first: a row of the keys as [B, 1, Hkv · N, D], or −1
  Tensor score;  // [B, ΣK] F32: their scores then, 0 in empty places
};

// The scores use softmax over the keys that are held, without what has left. `score` is that of the
// cache after `past` tokens. Of equal scores the older key leaves first. For kRecent nothing is
// computed from q and k, and the scores are 0.
Evictions evict_keys(const Tensor& q,  // [B, H, T, D]
                     const Tensor& k,  // [B, Hkv, max N, D]: a head has its first N
                     const ExactKeys& exact,
                     const Tensor& score = {},  // [B, ΣK] F32; undefined if nothing came before
                     int64_t past = 0);

// Softmax attention to the keys that are held. Returns [B, T, H, D].
Tensor exact_attention(const Tensor& q,  // [B, H, T, D]
                       const Tensor& k,  // [B, Hkv, max N, D]
                       const Tensor& v,  // [B, Hkv, max N, D]
                       const ExactKeys& exact, const Evictions& evictions,
                       Tensor* log_sum,  // receives [B, H, T] F32: log Σ exp(q·k/√D)
                       int64_t past = 0);

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
  Evictions (*evict)(const Tensor& q, const Tensor& k, const ExactKeys& exact,
                     const std::vector<HeadCache>& caches, const Tensor& score);
  Tensor (*forward)(const Tensor& q, const Tensor& k, const Tensor& v, const ExactKeys& exact,
                    const std::vector<HeadCache>& caches, const Evictions& evictions,
                    Tensor* log_sum);
  ExactAttentionGradients (*backward)(const Tensor& q, const Tensor& k, const Tensor& v,
                                      const ExactKeys& exact, const std::vector<HeadCache>& caches,
                                      const Evictions& evictions, const Tensor& grad_out,
                                      const AttentionTape& tape, const GradientBuffers& buffers);
};
// Evictions of this size, with nothing in them.
Evictions new_evictions(const std::vector<HeadCache>& caches, int64_t batch, int64_t block,
                        const Device& device);
// Of evictions on the CPU whose `order` is there: `leaves` and `kept`.
void list_evictions(const std::vector<HeadCache>& caches, int64_t block, Evictions& evictions);
namespace cpu {
extern const ExactKeysBackend kExactKeys;
Evictions evict_least_attended(const Tensor& q, const Tensor& k, const ExactKeys& exact,
                               const std::vector<HeadCache>& caches, const Tensor& score);
}  // namespace cpu
namespace cuda {
extern const ExactKeysBackend kExactKeys;
}

}  // namespace dofla
