// GPT-2: learned positions, one fused projection [q | k | v], weights stored input-major.
#include "dofla/model/weights.h"

namespace dofla {
namespace {

Linear load_conv1d(WeightReader& reader, const std::string& name, int64_t inputs, int64_t outputs) {
  return {.weight = reader.matrix(name + ".weight", {inputs, outputs}),
          .input_major = true,
          .bias = reader.vector(name + ".bias", outputs)};
}

}  // namespace

Weights load_gpt2(WeightReader& reader) {
  const ModelConfig& config = reader.config();
  const int64_t width = config.width, size = config.head_size;
  // The language model saves its body under "transformer."; the bare model without.
  const std::string root = reader.contains("transformer.wte.weight") ? "transformer." : "";
  Weights weights;
  weights.token_embedding = reader.matrix(root + "wte.weight", {config.vocabulary, width});
  weights.position_embedding = reader.matrix(root + "wpe.weight", {config.context, width});
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string at = fmt::format("{}h.{}.", root, i);
    LayerWeights layer;
    layer.attention_norm = reader.norm(at + "ln_1", width, true);
    layer.projections = {load_conv1d(reader, at + "attn.c_attn", width, 3 * width)};
    layer.q = {.offset = 0, .stride = size};
    layer.k = {.offset = width, .stride = size};
    layer.v = {.offset = 2 * width, .stride = size};
    layer.attention_output = load_conv1d(reader, at + "attn.c_proj", width, width);
    layer.mlp_norm = reader.norm(at + "ln_2", width, true);
    layer.mlp_up = load_conv1d(reader, at + "mlp.c_fc", width, config.mlp_width);
    layer.mlp_down = load_conv1d(reader, at + "mlp.c_proj", config.mlp_width, width);
    weights.layers.push_back(std::move(layer));
  }
  weights.final_norm = reader.norm(root + "ln_f", width, true);
  weights.head.weight = config.tied_head
                            ? weights.token_embedding
                            : reader.matrix("lm_head.weight", {config.vocabulary, width});
  return weights;
}

}  // namespace dofla
