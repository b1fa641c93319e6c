#include "dofla/model/softmax_attention.h"

#include <algorithm>
#include <cstring>

#include "dofla/ops/softmax_attention.h"

namespace dofla {
namespace {

// Copies the first `count` tokens of every head of `from` behind the first `at` tokens of `to`.
void copy_tokens(const Tensor& from, int64_t count, Tensor& to, int64_t at) {
  const int64_t heads = from.size(0) * from.size(1);
  const int64_t token = from.size(3) * size_in_bytes(from.dtype());
  const auto* source = static_cast<const std::byte*>(from.raw());
  auto* target = static_cast<std::byte*>(to.mutable_raw());
  for (int64_t h = 0; h < heads; ++h) {
    const std::byte* here = source + h * from.size(2) * token;
    std::byte* there = target + (h * to.size(2) + at) * token;
    if (from.device().is_cuda())
      copy_bytes(from.device(), here, to.device(), there, count * token);
    else
      std::memcpy(there, here, static_cast<size_t>(count * token));
  }
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
    copy_tokens(new_k, new_k.size(2), k, tokens);
    copy_tokens(new_v, new_v.size(2), v, tokens);
    tokens = needed;
  }

 private:
  void grow(const Tensor& like, int64_t capacity) {
    Shape shape = like.shape();
    shape[2] = capacity;
    Tensor larger_k(shape, like.dtype(), like.device()),
        larger_v(shape, like.dtype(), like.device());
    if (tokens > 0) {
      copy_tokens(k, tokens, larger_k, 0);
      copy_tokens(v, tokens, larger_v, 0);
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
                                              const AttentionTape& tape,
                                              const Tensor& grad_out) const {
  SoftmaxAttentionGradients gradients = softmax_attention_backward(q, k, v, grad_out, tape);
  return {gradients.q, gradients.k, gradients.v, {}};
}

}  // namespace dofla
