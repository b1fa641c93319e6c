#include "dofla/model/block.h"

#include "dofla/model/layers.h"
#include "dofla/ops/activation.h"
#include "dofla/ops/norm.h"

namespace dofla {
namespace {

// residual + MLP(x)
Tensor feed_forward(const Block& block, const Tensor& x, const Tensor& residual, BlockTape* tape) {
  const LayerWeights& weights = block.weights;
  const bool gated = block.config.gated_mlp;
  Tensor hidden =
      activated_product(block.config.activation, x, gated ? weights.mlp_gate : weights.mlp_up,
                        tape == nullptr ? nullptr : &tape->inner);
  if (gated) {
    const Tensor up = matmul(x, weights.mlp_up);
    multiply(hidden, up);
    if (tape != nullptr) tape->gated = up;
  }
  return matmul_add(hidden, weights.mlp_down, residual);
}

}  // namespace

Heads project_heads(const Block& block, const Tensor& x, int64_t batch, int64_t position,
                    BlockTape* tape) {
  const ModelConfig& config = block.config;
  const LayerWeights& weights = block.weights;
  const Tensor normal = normalise(config, weights.attention_norm, x);
  std::vector<Tensor> rows;
  for (const Linear& projection : weights.projections) rows.push_back(matmul(normal, projection));
  // A GPU's attention reads heads where the projections left them. That of a CPU is faster on heads
  // that lie together, and norms take no others.
  const bool together = !x.device().is_cuda();
  const auto heads_of = [&](const HeadSource& source, int64_t heads, bool copy) {
    const Tensor view =
        view_heads(rows[source.projection], source.columns, batch, heads, config.head_size);
    return copy ? contiguous_heads(view) : view;
  };
  Heads out = {heads_of(weights.q, config.heads, together || config.qk_norm),
               heads_of(weights.k, config.kv_heads, together || config.qk_norm),
               heads_of(weights.v, config.kv_heads, together)};
  if (config.qk_norm) {
    if (tape != nullptr) tape->q = out.q, tape->k = out.k;
    out.q = rms_norm(out.q, weights.q_norm, config.norm_epsilon);
    out.k = rms_norm(out.k, weights.k_norm, config.norm_epsilon);
  }
  if (!block.frequencies.empty()) {
    rotate(out.q, block.frequencies, position);
    rotate(out.k, block.frequencies, position);
  }
  if (tape != nullptr) tape->x = x, tape->heads = out;
  return out;
}

Tensor finish_block(const Block& block, const Tensor& x, const Heads& heads, AttentionState* state,
                    BlockTape* tape) {
  const ModelConfig& config = block.config;
  const LayerWeights& weights = block.weights;
  const Tensor mixed =
      block.attention
          .forward(heads.q, heads.k, heads.v, state, tape == nullptr ? nullptr : &tape->attention)
          .reshape({x.size(0), config.heads * config.head_size});
  const Tensor attended = matmul_add(mixed, weights.attention_output, x);
  // Side by side, attention and MLP read the same rows and both are added to them.
  const Tensor middle = config.parallel_residual ? x : attended;
  if (tape != nullptr) tape->middle = middle;
  return feed_forward(block, normalise(config, weights.mlp_norm, middle), attended, tape);
}

}  // namespace dofla
