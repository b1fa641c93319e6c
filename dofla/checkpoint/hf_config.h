// What a Hugging Face config.json says about a decoder, in one vocabulary for all families.
// A setting that would change the numbers and that we do not implement is refused by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dofla/core/activation.h"
#include "dofla/core/json.h"

namespace dofla {

enum class Norm { kLayer, kRms };

// Rotary embedding of the first `dims` coordinates of every head; none when dims is 0.
struct Rope {
  // Llama 3's stretching of the long wavelengths.
  struct Llama3 {
    double factor = 1;
    double low_frequency_factor = 1;
    double high_frequency_factor = 4;
    double original_context = 8192;
  };

  int64_t dims = 0;
  double theta = 10000;
  std::optional<Llama3> llama3;
};

struct ModelConfig {
  std::string
      model_type;  // gpt2, gpt_neox, llama, mistral, qwen2, qwen3; a student's is its teacher's
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads; each serves heads / kv_heads query heads
  int64_t head_size = 0;
  int64_t width = 0;
  int64_t mlp_width = 0;
  int64_t vocabulary = 0;
  int64_t context = 0;

  Norm norm = Norm::kLayer;
  double norm_epsilon = 1e-5;
  Activation activation = Activation::kGelu;
  bool gated_mlp = false;          // activation(gate(x)) · up(x)
  bool parallel_residual = false;  // x + attention(norm1(x)) + mlp(norm2(x))
  bool learned_positions = false;
  Rope rope;
  bool qk_norm = false;  // RMS norm of every query and key head before rope
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool tied_head = false;  // the output head is the token embedding

  std::optional<int64_t> begin_of_text;
  std::optional<int64_t> end_of_text;
};

// Of a student it is its teacher's. Throws Error "where: field: …" on anything missing, out of
// range or not supported.
ModelConfig read_config(const Json& config, std::string_view where);

}  // namespace dofla
