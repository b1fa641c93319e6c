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

Tensor activated(Activation activation, const Tensor& inner) {
  Tensor out = inner.clone();
  activate(activation, out);
  return out;
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
  Tensor received = activated(activation, tape.inner);
  Tensor grad_inner = matmul_backward(grad, block.weights.mlp_down);
  Tensor grad_gated = grad_inner.clone();
  multiply(grad_gated, received);
  multiply(grad_inner, tape.gated);
  activate_backward(activation, tape.inner, grad_inner);
  if (weights != nullptr) {
    multiply(received, tape.gated);  // now what the last layer received
    add_weight_gradient(received, grad, weights->mlp_down);
    add_weight_gradient(normal, grad_inner, weights->mlp_gate);
    add_weight_gradient(normal, grad_gated, weights->mlp_up);
  }
  return matmul_add(grad_inner, transposed(block.weights.mlp_gate),
                    matmul_backward(grad_gated, block.weights.mlp_up));
}

// From the gradients of q, k and v as they enter the attention to those of the projections' rows.
std::vector<Tensor> project_heads_backward(const Block& block, const BlockTape& tape,
                                           AttentionGradients grad, LayerWeights* weights) {
  const ModelConfig& config = block.config;
  if (!block.frequencies.empty()) {
    std::vector<float> back = block.frequencies;
    for (float& frequency : back) frequency = -frequency;
    rotate(grad.q, back, 0);
    rotate(grad.k, back, 0);
  }
  if (config.qk_norm) {
    grad.q = rms_norm_backward(tape.q, block.weights.q_norm, config.norm_epsilon, grad.q,
                               part_of(weights, &LayerWeights::q_norm));
    grad.k = rms_norm_backward(tape.k, block.weights.k_norm, config.norm_epsilon, grad.k,
                               part_of(weights, &LayerWeights::k_norm));
  }
  std::vector<Tensor> rows;  // every column belongs to a head
  for (const Linear& projection : block.weights.projections)
    rows.emplace_back(Shape{tape.x.size(0), projection.outputs()}, grad.q.dtype(), grad.q.device());
  const auto scatter = [&](const Tensor& heads, const HeadSource& source) {
    scatter_heads(heads, source.columns, rows[source.projection]);
  };
  scatter(grad.q, block.weights.q);
  scatter(grad.k, block.weights.k);
  scatter(grad.v, block.weights.v);
  return rows;
}

// From the gradient of the attention's output projection to that of its input, the normalised rows.
Tensor attend_backward(const Block& block, const BlockTape& tape, const Tensor& normal,
                       const Tensor& grad, LayerWeights* weights, FeatureGradients* features) {
  const Heads& heads = tape.heads;
  const Tensor grad_mixed = matmul_backward(grad, block.weights.attention_output);
  if (weights != nullptr)
    add_weight_gradient(tape.attention.out.reshape(grad_mixed.shape()), grad,
                        weights->attention_output);
  const AttentionGradients inner = block.attention.backward(
      heads.q, heads.k, heads.v, tape.attention, grad_mixed.reshape(tape.attention.out.shape()));
  if (features != nullptr && features->z.defined()) {
    add(features->z, inner.features.z);
    add(features->log_alpha, inner.features.log_alpha);
  }
  const std::vector<Tensor> rows = project_heads_backward(block, tape, inner, weights);
  Tensor out;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (weights != nullptr) add_weight_gradient(normal, rows[i], weights->projections[i]);
    const Linear back = transposed(block.weights.projections[i]);
    out = i == 0 ? matmul(rows[i], back) : matmul_add(rows[i], back, out);
  }
  return out;
}

}  // namespace

Tensor block_backward(const Block& block, const BlockTape& tape, const Tensor& grad_y,
                      LayerWeights* weights, FeatureGradients* features) {
  const ModelConfig& config = block.config;
  // Only gradients of weights need the normalised rows.
  const auto normal = [&](const NormWeights& norm, const Tensor& x) {
    return weights == nullptr ? Tensor() : normalise(config, norm, x);
  };
  const NormWeights& mlp_norm = block.weights.mlp_norm;
  Tensor grad_middle = normalise_backward(
      config, mlp_norm, tape.middle,
      feed_forward_backward(block, tape, normal(mlp_norm, tape.middle), grad_y, weights),
      part_of(weights, &LayerWeights::mlp_norm));
  add(grad_middle, grad_y);  // the MLP and the residual around it
  const NormWeights& attention_norm = block.weights.attention_norm;
  const Tensor& grad_attended = config.parallel_residual ? grad_y : grad_middle;
  Tensor grad_x = normalise_backward(config, attention_norm, tape.x,
                                     attend_backward(block, tape, normal(attention_norm, tape.x),
                                                     grad_attended, weights, features),
                                     part_of(weights, &LayerWeights::attention_norm));
  add(grad_x, grad_middle);
  return grad_x;
}

}  // namespace dofla
