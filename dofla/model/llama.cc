// The Llama family (Llama, Mistral, Qwen2, Qwen3): separate projections, gated MLP, RMS norms.
#include "dofla/model/weights.h"

namespace dofla {

Weights load_llama(WeightReader& reader) {
  const ModelConfig& config = reader.config();
  const int64_t width = config.width, size = config.head_size;
  Weights weights;
  weights.token_embedding = reader.matrix("model.embed_tokens.weight", {config.vocabulary, width});
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string at = fmt::format("model.layers.{}.", i);
    const auto projection = [&](const char* name, int64_t heads) {
      return reader.linear(at + "self_attn." + name, width, heads * size, config.qkv_bias);
    };
    LayerWeights layer;
    layer.attention_norm = reader.norm(at + "input_layernorm", width, false);
    layer.projections = {projection("q_proj", config.heads), projection("k_proj", config.kv_heads),
                         projection("v_proj", config.kv_heads)};
    layer.q = {.offset = 0, .stride = size, .projection = 0};
    layer.k = {.offset = 0, .stride = size, .projection = 1};
    layer.v = {.offset = 0, .stride = size, .projection = 2};
    if (config.qk_norm) {
      layer.q_norm = reader.vector(at + "self_attn.q_norm.weight", size);
      layer.k_norm = reader.vector(at + "self_attn.k_norm.weight", size);
    }
    layer.attention_output = reader.linear(at + "self_attn.o_proj", config.heads * size, width,
                                           config.attention_output_bias);
    layer.mlp_norm = reader.norm(at + "post_attention_layernorm", width, false);
    layer.mlp_gate = reader.linear(at + "mlp.gate_proj", width, config.mlp_width, config.mlp_bias);
    layer.mlp_up = reader.linear(at + "mlp.up_proj", width, config.mlp_width, config.mlp_bias);
    layer.mlp_down = reader.linear(at + "mlp.down_proj", config.mlp_width, width, config.mlp_bias);
    weights.layers.push_back(std::move(layer));
  }
  weights.final_norm = reader.norm("model.norm", width, false);
  weights.head.weight = config.tied_head
                            ? weights.token_embedding
                            : reader.matrix("lm_head.weight", {config.vocabulary, width});
  return weights;
}

}  // namespace dofla
