#include "dofla/model/block.h"

#include "dofla/model/layers.h"
#include "dofla/ops/activation.h"

namespace dofla {
namespace {

// residual + MLP(x)
Tensor feed_forward(Executor& run, const Block& block, const Tensor& x, const Tensor& residual,
                    BlockTape* tape) {
  const LayerWeights& weights = block.weights;
  const bool gated = block.config.gated_mlp;
  const Dense first = {.linear = gated ? weights.mlp_gate : weights.mlp_up,
                       .norm = norm_of(block.config, weights.mlp_norm),
                       .activation = block.config.activation};
  Tensor hidden;
  if (gated && tape != nullptr) {
    run.dense(x, {.linear = first.linear, .norm = first.norm}, std::nullopt, &tape->inner);
    run.dense(x, {.linear = weights.mlp_up, .norm = first.norm}, std::nullopt, &tape->gated);
    hidden = gate(block.config.activation, tape->inner, tape->gated);
  } else {
    hidden = run.dense(x, first, std::nullopt, tape == nullptr ? nullptr : &tape->inner);
    if (gated)
      hidden = run.dense(x, {.linear = weights.mlp_up, .norm = first.norm, .factor = hidden});
  }
  return run.dense(hidden, {.linear = weights.mlp_down, .residual = residual});
}

}  // namespace

Heads project_heads(Executor& run, const Block& block, const Tensor& x, BlockTape* tape) {
  const ModelConfig& config = block.config;
  const LayerWeights& weights = block.weights;
  std::vector<Tensor> rows;
  for (const Linear& projection : weights.projections)
    rows.push_back(
        run.dense(x, {.linear = projection, .norm = norm_of(config, weights.attention_norm)}));
  // A GPU's attention reads heads where the projections left them. That of a CPU is faster on heads
  // that lie together, and the norms' backward takes no others.
  const bool together = !x.device().is_cuda();
  const auto heads_of = [&](HeadColumns columns, int64_t heads, bool copy) {
    const Tensor view =
        view_heads(rows[columns.projection], columns, run.batch(), heads, config.head_size);
    return copy ? contiguous_heads(view) : view;
  };
  const bool norms_on_tape = config.qk_norm && tape != nullptr;
  Heads out = {heads_of(weights.q, config.heads, together || norms_on_tape),
               heads_of(weights.k, config.kv_heads, together || norms_on_tape),
               heads_of(weights.v, config.kv_heads, together)};
  if (norms_on_tape) tape->q = out.q, tape->k = out.k;
  if (config.qk_norm || block.frequencies.defined())
    run.place_heads({weights.q_norm, weights.k_norm, config.norm_epsilon, block.frequencies}, out);
  if (tape != nullptr) tape->x = x, tape->heads = out;
  return out;
}

Tensor finish_block(Executor& run, const Block& block, const Tensor& x, const Heads& heads,
                    BlockTape* tape) {
  const Tensor mixed =
      run.attend(block.layer, block.attention, heads, tape == nullptr ? nullptr : &tape->attention);
  const Tensor attended =
      run.dense(mixed, {.linear = block.weights.attention_output, .residual = x});
  // Side by side, attention and MLP read the same rows and both are added to them.
  const Tensor middle = block.config.parallel_residual ? x : attended;
  if (tape != nullptr) tape->middle = middle;
  return feed_forward(run, block, middle, attended, tape);
}

}  // namespace dofla
