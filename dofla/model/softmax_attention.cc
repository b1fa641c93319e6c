#include "dofla/model/softmax_attention.h"

#include <algorithm>

#include "dofla/ops/heads.h"
#include "dofla/ops/softmax_attention.h"

namespace dofla {
namespace {

// Tokens [begin, end) of every head of a cache.
Tensor tokens_of(const Tensor& cache, int64_t begin, int64_t end) {
  return cache.view({cache.size(0), cache.size(1), end - begin, cache.size(3)},
                    begin * cache.step(2), {cache.step(0), cache.step(1), cache.step(2), 1});
}

struct KeyValueCache : AttentionState {
  Tensor k, v;  // [B, Hkv, capacity, D]
  int64_t tokens = 0;

  int64_t bytes() const override { return k.defined() ? k.bytes() + v.bytes() : 0; }

  std::unique_ptr<AttentionState> clone(int64_t copies) const override {
    auto copy = std::make_unique<KeyValueCache>(*this);
    if (k.defined()) {
      copy->k = k.repeat(copies);
      copy->v = v.repeat(copies);
    }
    return copy;
  }

  void append(const Tensor& new_k, const Tensor& new_v, int64_t context) {
    const int64_t needed = tokens + new_k.size(2);
    if (!k.defined() || needed > k.size(2)) {
      const int64_t doubled = k.defined() ? 2 * k.size(2) : 64;
      grow(new_k, std::max(needed, std::min(doubled, context)));
    }
    Tensor free_k = tokens_of(k, tokens, needed), free_v = tokens_of(v, tokens, needed);
    copy_heads(new_k, free_k);
    copy_heads(new_v, free_v);
    tokens = needed;
  }

 private:
  void grow(const Tensor& like, int64_t capacity) {
    Shape shape = like.shape();
    shape[2] = capacity;
    Tensor larger_k(shape, like.dtype(), like.device()),
        larger_v(shape, like.dtype(), like.device());
    if (tokens > 0) {
      Tensor kept_k = tokens_of(larger_k, 0, tokens), kept_v = tokens_of(larger_v, 0, tokens);
      copy_heads(tokens_of(k, 0, tokens), kept_k);
      copy_heads(tokens_of(v, 0, tokens), kept_v);
    }
    k = larger_k;
    v = larger_v;
  }
};

}  // namespace

std::unique_ptr<AttentionState> SoftmaxAttention::new_state() const {
  return std::make_unique<KeyValueCache>();
}

Tensor SoftmaxAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                 AttentionState* state, AttentionTape* tape) const {
  if (state == nullptr) return softmax_attention(q, k, v, k.size(2), tape);
  auto& cache = dynamic_cast<KeyValueCache&>(*state);
  cache.append(k, v, context_);
  return softmax_attention(q, cache.k, cache.v, cache.tokens);
}

AttentionGradients SoftmaxAttention::backward(const Tensor& q, const Tensor& k, const Tensor& v,
                                              const AttentionTape& tape, const Tensor& grad_out,
                                              const GradientRoom& room) const {
  SoftmaxAttentionGradients gradients = softmax_attention_backward(q, k, v, grad_out, tape, room);
  return {gradients.q, gradients.k, gradients.v, {}};
}

}  // namespace dofla
