#include "dofla/model/block.h"
#include "dofla/model/layers.h"
#include "dofla/ops/activation.h"
#include "dofla/ops/norm.h"

namespace dofla {
namespace {

// A layer of accumulators within those of the block, or null.
template <class Part>
Part* part_of(LayerWeights* weights, Part LayerWeights::*part) {
  return weights == nullptr ? nullptr : &(weights->*part);
}

LayerWeights* if_trained(LayerWeights* weights, Linear LayerWeights::*layer) {
  return weights != nullptr && (weights->*layer).weight.defined() ? weights : nullptr;
}

// From the gradient of the MLP's output to that of its input, the normalised rows.
Tensor feed_forward_backward(const Block& block, const BlockTape& tape, const Tensor& normal,
                             const Tensor& grad, LayerWeights* weights) {
  const Activation activation = block.config.activation;
  if (!block.config.gated_mlp) {
    if (weights != nullptr)
      add_weight_gradient(activated(activation, tape.inner), grad, weights->mlp_down);
    const Tensor grad_inner =
        activated_product_backward(activation, grad, block.weights.mlp_down, tape.inner);
    if (weights != nullptr) add_weight_gradient(normal, grad_inner, weights->mlp_up);
    return matmul_backward(grad_inner, block.weights.mlp_up);
  }
  Tensor received;  // by the last layer
  const GateGradients inner = gate_backward(activation, tape.inner, tape.gated,
                                            matmul_backward(grad, block.weights.mlp_down),
                                            weights == nullptr ? nullptr : &received);
  if (weights != nullptr) {
    add_weight_gradient(received, grad, weights->mlp_down);
    add_weight_gradient(normal, inner.inner, weights->mlp_gate);
    add_weight_gradient(normal, inner.gated, weights->mlp_up);
  }
  return matmul_add(inner.inner, transposed(block.weights.mlp_gate),
                    matmul_backward(inner.gated, block.weights.mlp_up));
}

// The gradients of the projections' rows, and the columns of them that belong to q, k and v.
struct RowGradients {
  std::vector<Tensor> rows;
  GradientBuffers heads;  // views
};

// To be written: every column belongs to a head.
RowGradients new_row_gradients(const Block& block, const Heads& heads) {
  const int64_t batch = heads.q.size(0), tokens = heads.q.size(2);
  std::vector<Tensor> rows;
  for (const Linear& projection : block.weights.projections)
    rows.emplace_back(Shape{batch * tokens, projection.outputs()}, heads.q.dtype(),
                      heads.q.device());
  const auto columns_of = [&](HeadColumns columns, const Tensor& like) {
    return view_heads(rows[columns.projection], columns, batch, like.size(1), like.size(3));
  };
  GradientBuffers columns = {columns_of(block.weights.q, heads.q),
                             columns_of(block.weights.k, heads.k),
                             columns_of(block.weights.v, heads.v)};
  return {std::move(rows), std::move(columns)};
}

// From the gradients of q and k as they enter the attention to those of the projections' columns,
// where they are already unless there are q/k norms.
void project_heads_backward(const Block& block, const BlockTape& tape, AttentionGradients grad,
                            GradientBuffers& columns, LayerWeights* weights) {
  const ModelConfig& config = block.config;
  if (block.frequencies.defined()) {
    rotate(grad.q, block.frequencies, Tensor(), true);
    rotate(grad.k, block.frequencies, Tensor(), true);
  }
  if (!config.qk_norm) return;
  copy_heads(rms_norm_backward(tape.q, block.weights.q_norm, config.norm_epsilon, grad.q,
                               part_of(weights, &LayerWeights::q_norm)),
             columns.q);
  copy_heads(rms_norm_backward(tape.k, block.weights.k_norm, config.norm_epsilon, grad.k,
                               part_of(weights, &LayerWeights::k_norm)),
             columns.k);
}

// From the gradient of the attention's output projection to that of its input, the normalised rows.
Tensor attend_backward(const Block& block, const BlockTape& tape, const Tensor& normal,
                       const Tensor& grad, LayerWeights* weights, FeatureGradients* features) {
  const Heads& heads = tape.heads;
  const Tensor grad_mixed = matmul_backward(grad, block.weights.attention_output);
  if (weights != nullptr)
    add_weight_gradient(tape.attention.out.reshape(grad_mixed.shape()), grad,
                        weights->attention_output);
  RowGradients to = new_row_gradients(block, heads);
  GradientBuffers buffers = to.heads;
  if (block.config.qk_norm) buffers.q = buffers.k = Tensor();  // their norms come in between
  const AttentionGradients inner = block.attention.backward(
      heads, tape.attention, grad_mixed.reshape(tape.attention.out.shape()), buffers);
  if (features != nullptr && features->z.defined()) {
    const auto from = feature_parts(inner.features);
    const auto sums = feature_parts(*features);
    for (size_t part = 0; part < sums.size(); ++part)
      if (sums[part].second->defined()) add(*sums[part].second, *from[part].second);
  }
  project_heads_backward(block, tape, inner, to.heads, weights);
  Tensor out;
  for (size_t i = 0; i < to.rows.size(); ++i) {
    if (weights != nullptr) add_weight_gradient(normal, to.rows[i], weights->projections[i]);
    const Linear back = transposed(block.weights.projections[i]);
    out = i == 0 ? matmul(to.rows[i], back) : matmul_add(to.rows[i], back, out);
  }
  return out;
}

}  // namespace

Tensor block_backward(const Block& block, const BlockTape& tape, const Tensor& grad_y,
                      LayerWeights* weights, FeatureGradients* features) {
  const ModelConfig& config = block.config;
  // The projections of attention are trained, or these and all the rest, or nothing.
  LayerWeights* attention = if_trained(weights, &LayerWeights::attention_output);
  LayerWeights* rest = if_trained(weights, &LayerWeights::mlp_down);
  // Only gradients of weights need the normalised rows.
  const auto normal = [&](const NormWeights& norm, const Tensor& x, const LayerWeights* trained) {
    return trained == nullptr ? Tensor() : normalise(norm_of(config, norm), x);
  };
  const NormWeights& mlp_norm = block.weights.mlp_norm;
  const Tensor grad_middle = normalise_backward(
      config, mlp_norm, tape.middle,
      feed_forward_backward(block, tape, normal(mlp_norm, tape.middle, rest), grad_y, rest),
      grad_y,  // of the residual around the MLP
      part_of(rest, &LayerWeights::mlp_norm));
  const NormWeights& attention_norm = block.weights.attention_norm;
  const Tensor& grad_attended = config.parallel_residual ? grad_y : grad_middle;
  return normalise_backward(config, attention_norm, tape.x,
                            attend_backward(block, tape, normal(attention_norm, tape.x, attention),
                                            grad_attended, attention, features),
                            grad_middle, part_of(rest, &LayerWeights::attention_norm));
}

}  // namespace dofla
