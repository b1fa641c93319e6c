#include "dofla/model/softmax_attention.h"

#include <algorithm>

#include "dofla/ops/heads.h"
#include "dofla/ops/softmax_attention.h"

namespace dofla {
namespace {

struct KeyValueCache : AttentionState {
  Tensor k, v;  // [B, Hkv, capacity, D]

  int64_t bytes() const override { return k.defined() ? k.bytes() + v.bytes() : 0; }
  int64_t capacity() const { return k.defined() ? k.size(2) : 0; }

  std::unique_ptr<AttentionState> gather(std::span<const Sequence> sequences) const override {
    int64_t capacity = 0;
    for (const auto& [state, index] : sequences)
      capacity = std::max(capacity, dynamic_cast<const KeyValueCache&>(*state).capacity());
    auto out = std::make_unique<KeyValueCache>();
    if (sequences.empty() || !k.defined()) return out;
    out->allocate(static_cast<int64_t>(sequences.size()), capacity, k);
    for (size_t i = 0; i < sequences.size(); ++i) {
      const auto& from = dynamic_cast<const KeyValueCache&>(*sequences[i].state);
      copy_sequence(from.k, sequences[i].index, out->k, static_cast<int64_t>(i));
      copy_sequence(from.v, sequences[i].index, out->v, static_cast<int64_t>(i));
    }
    return out;
  }

  std::unique_ptr<AttentionState> transform(const Change& change) const override {
    auto out = std::make_unique<KeyValueCache>();
    if (k.defined()) out->k = change(k), out->v = change(v);
    return out;
  }

  // With capacity for so many tokens of every sequence; `like` is another cache.
  void allocate(int64_t batch, int64_t tokens, const Tensor& like) {
    allocate({batch, like.size(1), tokens, like.size(3)}, like.dtype(), like.device());
  }
  void allocate(const Shape& shape, DType type, const Device& device) {
    k = Tensor(shape, type, device);
    v = Tensor(shape, type, device);
  }

  static void copy_sequence(const Tensor& from, int64_t sequence, Tensor& to, int64_t index) {
    Tensor kept = tokens_of(to.slice(index, index + 1), 0, from.size(2));
    copy_heads(from.slice(sequence, sequence + 1), kept);
  }
};

}  // namespace

std::unique_ptr<AttentionState> SoftmaxAttention::new_state() const {
  return std::make_unique<KeyValueCache>();
}

// The cache doubles, but never beyond the context without need.
bool SoftmaxAttention::reserve(AttentionState& state, int64_t batch, int64_t tokens, DType type,
                               const Device& device) const {
  auto& cache = dynamic_cast<KeyValueCache&>(state);
  if (tokens <= cache.capacity()) return false;
  const KeyValueCache old = cache;
  const int64_t doubled = std::max<int64_t>(64, 2 * old.capacity());
  cache.allocate({batch, heads_, std::max(tokens, std::min(doubled, context_)), head_size_}, type,
                 device);
  for (int64_t b = 0; old.k.defined() && b < batch; ++b) {
    KeyValueCache::copy_sequence(old.k, b, cache.k, b);
    KeyValueCache::copy_sequence(old.v, b, cache.v, b);
  }
  return true;
}

Tensor SoftmaxAttention::forward(const Heads& heads, const Past& past, AttentionTape* tape) const {
  const auto& [q, k, v] = heads;
  if (past.state == nullptr) return softmax_attention(q, k, v, k.size(2), tape);
  auto& cache = dynamic_cast<KeyValueCache&>(*past.state);
  const int64_t keys = past.most + k.size(2);
  reserve(cache, k.size(0), keys, k.dtype(), k.device());
  if (past.equal) {
    Tensor free_k = tokens_of(cache.k, past.most, keys),
           free_v = tokens_of(cache.v, past.most, keys);
    copy_heads(k, free_k);
    copy_heads(v, free_v);
    return softmax_attention(q, cache.k, cache.v, keys);
  }
  append_heads(k, past.tokens, cache.k);
  append_heads(v, past.tokens, cache.v);
  return softmax_attention(q, cache.k, cache.v, keys, nullptr, past.tokens);
}

Tensor SoftmaxAttention::write_step(TokenProgram& program, const Heads& heads,
                                    AttentionState& state) const {
  auto& cache = dynamic_cast<KeyValueCache&>(state);
  return program.softmax_attention_step(heads.q, heads.k, heads.v, cache.k, cache.v);
}

AttentionGradients SoftmaxAttention::backward(const Heads& heads, const AttentionTape& tape,
                                              const Tensor& grad_out,
                                              const GradientBuffers& buffers) const {
  SoftmaxAttentionGradients gradients =
      softmax_attention_backward(heads.q, heads.k, heads.v, grad_out, tape, buffers);
  return {gradients.q, gradients.k, gradients.v, {}};
}

}  // namespace dofla
