#include "dofla/ops/decode.h"

#include "dofla/ops/activation.h"
#include "dofla/ops/cuda/decode.h"
#include "dofla/ops/embedding.h"
#include "dofla/ops/norm.h"

namespace dofla {
namespace {

void check(const Tensor& x, const Dense& layer) {
  const Linear& linear = layer.linear;
  require(x.rank() == 2 && linear.weight.rank() == 2 && x.size(1) == linear.inputs(),
          "dense: x {} meets a weight {}", to_string(x.shape()), to_string(linear.weight.shape()));
  for (const Tensor* vector : {&layer.norm.weight, &layer.norm.bias})
    if (vector->defined()) require_shape(*vector, {linear.inputs()}, "dense: norm");
  if (linear.bias.defined()) require_shape(linear.bias, {linear.outputs()}, "dense: bias");
  for (const Tensor* rows : {&layer.factor, &layer.residual})
    if (rows->defined())
      require_shape(*rows, {x.size(0), linear.outputs()}, "dense: factor and residual");
}

Tensor normalise(const Dense::Norm& norm, const Tensor& x) {
  if (!norm.weight.defined()) return x;
  return norm.centre ? layer_norm(x, norm.weight, norm.bias, norm.epsilon)
                     : rms_norm(x, norm.weight, norm.epsilon);
}

void check(const RowHeads& of, int64_t batch, int64_t size) {
  require(of.rows.rank() == 2 && of.rows.size(0) == batch, "heads: rows {} for {} sequences",
          to_string(of.rows.shape()), batch);
  require(of.heads > 0 && of.columns.offset >= 0 &&
              of.columns.offset + (of.heads - 1) * of.columns.stride + size <= of.rows.size(1),
          "heads: the last of {} ends past column {}", of.heads, of.rows.size(1));
}

Tensor gather(const RowHeads& of, int64_t size) {
  return gather_heads(of.rows, of.columns, of.rows.size(0), of.heads, size);
}

// From the operations that whole sequences use.
void place(const Placement& placement, const Tensor& norm, const Tensor& where, RowHeads& of) {
  Tensor heads = gather(of, placement.head_size);  // [B, H, 1, D]
  if (norm.defined()) heads = rms_norm(heads, norm, placement.epsilon);
  if (placement.frequencies.defined()) {
    const auto* first = placement.frequencies.data<float>();
    const std::vector<float> frequencies(first, first + placement.frequencies.count());
    for (int64_t b = 0; b < heads.size(0); ++b) {
      Tensor sequence = heads.slice(b, b + 1);
      rotate(sequence, frequencies, where.data<int64_t>()[b]);
    }
  }
  scatter_heads(heads, of.columns, of.rows);
}

}  // namespace

Tensor embed_tokens(const Tensor& tokens, const Tensor& positions, const Tensor& ids,
                    const Tensor& where) {
  require_shape(where, ids.shape(), "embed_tokens: positions");
  if (tokens.device().is_cuda()) return cuda::embed_tokens(tokens, positions, ids, where);
  Tensor x = embed(tokens, ids);
  if (positions.defined()) add(x, embed(positions, where));
  return x;
}

Tensor dense(const Tensor& x, const Dense& layer, std::optional<DType> result) {
  check(x, layer);
  const DType type = result.value_or(x.dtype());
  if (x.device().is_cuda() && cuda::takes_few_rows(x, layer)) {
    Tensor y({x.size(0), layer.linear.outputs()}, type, x.device());
    cuda::few_row_dense(x, layer, y);
    return y;
  }
  Tensor y = matmul(normalise(layer.norm, x), layer.linear, type);
  if (layer.activation) activate(*layer.activation, y);
  if (layer.factor.defined()) multiply(y, layer.factor);
  if (layer.residual.defined()) add(y, layer.residual);
  return y;
}

void place_heads(const Placement& placement, const Tensor& where, RowHeads& q, RowHeads& k) {
  check(q, where.count(), placement.head_size);
  check(k, where.count(), placement.head_size);
  if (q.rows.device().is_cuda()) return cuda::place_heads(placement, where, q, k);
  place(placement, placement.q_norm, where, q);
  place(placement, placement.k_norm, where, k);
}

Tensor linear_attention_step(const RowHeads& q, const RowHeads& k, const RowHeads& v,
                             const Features& features, LinearAttentionState& state) {
  require_valid(features, features.z.size(1));
  const int64_t batch = q.rows.size(0), total = features.total(), size = features.z.size(1);
  require(
      q.heads == features.heads() && k.heads > 0 && q.heads % k.heads == 0 && v.heads == k.heads,
      "linear attention: {} queries, {} keys and {} values, features for {}", q.heads, k.heads,
      v.heads, features.heads());
  for (const RowHeads* of : {&q, &k, &v}) check(*of, batch, size);
  require_shape(state.log_max, {batch, total}, "linear attention: state log_max");
  require_shape(state.a, {batch, total}, "linear attention: state a");
  require_shape(state.b, {batch, total, size}, "linear attention: state b");
  if (q.rows.device().is_cuda()) return cuda::linear_attention_step(q, k, v, features, state);
  return linear_attention(gather(q, size), gather(k, size), gather(v, size), features, &state)
      .reshape({batch, q.heads * size});
}

std::unique_ptr<TokenProgram> token_program(const Device& device) {
  return device.is_cuda() ? cuda::token_program(device) : nullptr;
}

}  // namespace dofla
