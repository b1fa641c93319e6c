#include "dofla/ops/linear_attention.h"

#include <algorithm>
#include <limits>

namespace dofla {
namespace {

void require_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
                    int64_t chunk, int64_t block) {
  require_queries_and_keys(q, k, features, "linear attention: q", "linear attention: k");
  require_shape(v, k.shape(), "linear attention: v");
  require(v.dtype() == q.dtype(), "linear attention: v: expected {}, found {}", name(q.dtype()),
          name(v.dtype()));
  require(chunk >= 1, "linear attention: expected a chunk of at least 1 token, found {}", chunk);
  require(block >= 1 && kLinearAttentionChunk % block == 0 && q.size(2) % block == 0,
          "linear attention: expected blocks of a divisor of {} and of the {} tokens, found {}",
          kLinearAttentionChunk, q.size(2), block);
}

int64_t whole_blocks(int64_t chunk, int64_t block) {
  return (chunk + block - 1) / block * block;
}

void require_state(const LinearAttentionState& state, const Features& features, int64_t batch) {
  const int64_t total = features.total();
  require_shape(state.log_max, {batch, total}, "linear attention: state log_max");
  require_shape(state.a, {batch, total}, "linear attention: state a");
  require_shape(state.b, {batch, total, features.z.size(1)}, "linear attention: state b");
  for (const Tensor* tensor : {&state.log_max, &state.a, &state.b})
    require(tensor->dtype() == DType::kF32, "linear attention: state: expected F32, found {}",
            name(tensor->dtype()));
}

const LinearAttentionBackend& linear_attention_backend(const Tensor& x) {
  return x.device().is_cuda() ? cuda::kLinearAttention : cpu::kLinearAttention;
}

}  // namespace

LinearAttentionState LinearAttentionState::fork(int64_t copies) const {
  return {log_max.repeat(copies), a.repeat(copies), b.repeat(copies)};
}

LinearAttentionState new_linear_attention_state(int64_t batch, const Features& features) {
  const int64_t total = features.total();
  const Device& device = features.z.device();
  Tensor log_max({batch, total});
  std::fill_n(log_max.data<float>(), log_max.count(), -std::numeric_limits<float>::infinity());
  return {log_max.to(device), Tensor::zeros({batch, total}, DType::kF32, device),
          Tensor::zeros({batch, total, features.z.size(1)}, DType::kF32, device)};
}

Tensor linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
                        LinearAttentionState* state, int64_t chunk, AttentionTape* tape,
                        int64_t block, const std::vector<int64_t>& tokens) {
  require_inputs(q, k, v, features, chunk, block);
  if (state != nullptr) require_state(*state, features, q.size(0));
  require(tokens.empty() || std::ssize(tokens) == k.size(1),
          "linear attention: tokens of {} key heads, there are {}", tokens.size(), k.size(1));
  for (const int64_t count : tokens)
    require(count >= 0 && count <= q.size(2) && count % block == 0,
            "linear attention: a head with {} of {} tokens in blocks of {}", count, q.size(2),
            block);
  Tensor out = linear_attention_backend(q).forward(
      q, k, v, features, state, whole_blocks(chunk, block),
      tape == nullptr ? nullptr : &tape->log_sum, block, tokens);
  if (tape != nullptr) tape->out = out;
  return out;
}

Tensor linear_attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                             const Features& features, LinearAttentionState& state) {
  require_inputs(q, k, v, features, 1, 1);
  require(q.size(2) == 1, "linear attention: a step of {} tokens", q.size(2));
  require_state(state, features, q.size(0));
  return linear_attention_backend(q).step(q, k, v, features, state);
}

LinearAttentionGradients linear_attention_backward(const Tensor& q, const Tensor& k,
                                                   const Tensor& v, const Features& features,
                                                   const Tensor& grad_out, int64_t chunk,
                                                   const AttentionTape& tape,
                                                   const GradientBuffers& buffers, int64_t block) {
  require_inputs(q, k, v, features, chunk, block);
  require_shape(grad_out, {q.size(0), q.size(2), q.size(1), q.size(3)},
                "linear attention: grad_out");
  require(grad_out.dtype() == q.dtype(), "linear attention: grad_out: expected {}, found {}",
          name(q.dtype()), name(grad_out.dtype()));
  require_tape(tape, q);
  return linear_attention_backend(q).backward(q, k, v, features, grad_out,
                                              whole_blocks(chunk, block), tape, buffers, block);
}

}  // namespace dofla
