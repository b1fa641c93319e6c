#include "dofla/ops/cuda/decode.h"

#include "dofla/ops/cuda/decode_kernels.h"
#include "dofla/ops/cuda/few_row_kernels.h"
#include "dofla/ops/cuda/linear_attention_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

const int64_t* ids_of(const Tensor& x) {
  require(x.device().is_cuda() && x.dtype() == DType::kI64, "decoding: expected I64 on the GPU");
  return static_cast<const int64_t*>(x.raw());
}

HeadVectors vectors_of(RowHeads& of, const Tensor& norm) {
  return {of.rows.mutable_raw(), of.rows.size(1),   of.heads,
          of.columns.offset,     of.columns.stride, floats(norm)};
}

// Head h of sequence b begins at column offset + h·stride of row b.
HeadRows heads_of(const RowHeads& of) {
  const int64_t bytes = size_in_bytes(of.rows.dtype());
  return {static_cast<const std::byte*>(of.rows.raw()) + of.columns.offset * bytes, of.rows.size(1),
          of.columns.stride, 0};
}

}  // namespace

Tensor embed_tokens(const Tensor& tokens, const Tensor& positions, const Tensor& ids,
                    const Tensor& where) {
  const int64_t batch = ids.count(), width = tokens.size(1);
  Tensor x({batch, width}, tokens.dtype(), tokens.device());
  const TokenEmbedding embedding = {element_of(tokens), batch,       width,        tokens.raw(),
                                    positions.raw(),    ids_of(ids), ids_of(where)};
  cuda_check(launch_embed_tokens(embedding, x.mutable_raw(), stream_of(x)), "embedding");
  return x;
}

bool takes_few_rows(const Tensor& x, const Dense& layer) {
  for (const Tensor* tensor :
       {&x, &layer.linear.weight, &layer.linear.bias, &layer.factor, &layer.residual})
    if (!is_bf16(*tensor)) return false;
  if (layer.linear.input_major || !begins_at_pack(x) || !begins_at_pack(layer.linear.weight))
    return false;
  return few_rows_fit(x.size(0), x.size(1), layer.linear.outputs(), layer.norm.weight.defined());
}

void few_row_dense(const Tensor& x, const Dense& layer, Tensor& y) {
  FewRowProduct p = {};
  p.rows = x.size(0), p.inputs = x.size(1), p.outputs = y.size(1);
  p.x = x.raw();
  p.norm = {floats(layer.norm.weight), floats(layer.norm.bias),
            static_cast<float>(layer.norm.epsilon), layer.norm.centre};
  p.weight = layer.linear.weight.raw(), p.bias = layer.linear.bias.raw();
  p.nonlinear = layer.activation.has_value();
  p.f = layer.activation.value_or(Activation::kRelu);
  p.factor = layer.factor.raw();
  p.residual = layer.residual.raw();
  p.y = y.mutable_raw(), p.y_element = element_of(y);
  cuda_check(launch_few_row_product(p, stream_of(x)), "matrix product");
}

void place_heads(const Placement& placement, const Tensor& where, RowHeads& q, RowHeads& k) {
  const PlacedHeads heads = {element_of(q.rows),
                             where.count(),
                             placement.head_size,
                             vectors_of(q, placement.q_norm),
                             vectors_of(k, placement.k_norm),
                             static_cast<float>(placement.epsilon),
                             placement.frequencies.count(),
                             floats(placement.frequencies),
                             ids_of(where)};
  cuda_check(launch_place_heads(heads, stream_of(q.rows)), "rotate");
}

Tensor linear_attention_step(const RowHeads& q, const RowHeads& k, const RowHeads& v,
                             const Features& features, LinearAttentionState& state) {
  const int64_t batch = q.rows.size(0), size = features.z.size(1);
  Tensor out({batch, q.heads * size}, q.rows.dtype(), q.rows.device());
  const LinearAttentionShape shape = {element_of(q.rows), batch, q.heads, k.heads, 1, size};
  const LinearAttentionFeatures on_gpu = {features.counts.data(), floats(features.z),
                                          floats(features.log_alpha), features.subtract_norm};
  cuda_check(launch_linear_attention_step(
                 shape, on_gpu, heads_of(q), heads_of(k), heads_of(v),
                 {mutable_floats(state.log_max), mutable_floats(state.a), mutable_floats(state.b)},
                 tokens_then_heads(out.mutable_raw(), q.heads, 1, size), true, stream_of(out)),
             "linear attention");
  return out;
}

}  // namespace dofla::cuda
