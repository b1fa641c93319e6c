#include "dofla/checkpoint/hf_config.h"

#include <array>
#include <cmath>
#include <utility>

#include "dofla/checkpoint/config_fields.h"
#include "dofla/checkpoint/rope_config.h"
#include "dofla/core/error.h"

namespace dofla {
namespace {

Activation read_activation(const ConfigFields& fields, std::string_view field,
                           std::string_view fallback) {
  constexpr std::array<std::pair<std::string_view, Activation>, 9> kNames = {{
      {"gelu", Activation::kGelu},
      {"gelu_python", Activation::kGelu},
      {"gelu_new", Activation::kGeluTanh},
      {"gelu_fast", Activation::kGeluTanh},
      {"gelu_accurate", Activation::kGeluTanh},
      {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"silu", Activation::kSilu},
      {"swish", Activation::kSilu},
      {"relu", Activation::kRelu},
  }};
  const std::string given = fields.text(field).value_or(std::string(fallback));
  for (const auto& [name, activation] : kNames)
    if (name == given) return activation;
  fields.refuse(
      field, fmt::format("{} is not supported; gelu, gelu_new, silu and relu are", excerpt(given)));
}

double read_epsilon(const ConfigFields& fields, std::string_view field, double fallback) {
  const double epsilon = fields.number(field).value_or(fallback);
  if (!(epsilon >= 0 && std::isfinite(epsilon)))
    fields.unexpected(field, "a number from 0 up", *fields.find(field));
  return epsilon;
}

// Of several tokens the first ends a text; the others end a turn of a chat. A token outside the
// vocabulary can neither be read nor written: the model has no such token.
std::optional<int64_t> read_token(const ConfigFields& fields, std::string_view field,
                                  int64_t vocabulary) {
  const Json* value = fields.find(field);
  if (value == nullptr) return std::nullopt;
  const Json& id = value->is_array() && !value->empty() ? value->front() : *value;
  if (!id.is_number_integer() || id < 0)
    fields.unexpected(field, "a token id or an array of them", *value);
  if (id >= vocabulary) return std::nullopt;
  return id.get<int64_t>();
}

void expect_flag(const ConfigFields& fields, std::string_view field, bool expected) {
  if (fields.flag(field, expected) != expected)
    fields.refuse(field, fmt::format("{} is not supported", !expected));
}

// A window at least as long as the context hides nothing; any other changes the numbers.
void refuse_sliding_window(const ConfigFields& fields, std::optional<int64_t> window,
                           int64_t context) {
  if (window && *window < context)
    fields.refuse("sliding_window", fmt::format("a window of {} tokens in a context of {} is not "
                                                "supported",
                                                *window, context));
}

void refuse_layer_types(const ConfigFields& fields, int64_t layers) {
  const Json* types = fields.find("layer_types");
  if (types == nullptr) return;
  if (!types->is_array() || types->size() != static_cast<size_t>(layers))
    fields.unexpected("layer_types", fmt::format("an array of {} layers", layers), *types);
  for (const Json& type : *types)
    if (type != "full_attention")
      fields.refuse("layer_types",
                    fmt::format("{} is not supported; \"full_attention\" is", excerpt(type)));
}

void refuse_quantization(const ConfigFields& fields) {
  if (fields.find("quantization_config") != nullptr)
    fields.refuse("quantization_config",
                  "quantized weights are not supported; expected F64, F32, F16 or BF16");
}

ModelConfig read_gpt2(const ConfigFields& fields) {
  ModelConfig config;
  config.layers = fields.size("n_layer");
  config.heads = config.kv_heads = fields.size("n_head");
  config.width = fields.size("n_embd");
  config.mlp_width = fields.optional_size("n_inner").value_or(4 * config.width);
  config.context = fields.size("n_positions");
  if (config.width % config.heads != 0)
    fields.refuse("n_head",
                  fmt::format("{} heads do not divide a width of {}", config.heads, config.width));
  config.head_size = config.width / config.heads;
  config.norm_epsilon = read_epsilon(fields, "layer_norm_epsilon", 1e-5);
  config.activation = read_activation(fields, "activation_function", "gelu_new");
  config.learned_positions = true;
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = true;
  config.tied_head = fields.flag("tie_word_embeddings", true);
  expect_flag(fields, "scale_attn_weights", true);
  expect_flag(fields, "scale_attn_by_inverse_layer_idx", false);
  expect_flag(fields, "add_cross_attention", false);
  return config;
}

// The sizes that all families but gpt2 spell alike.
ModelConfig read_sizes(const ConfigFields& fields) {
  ModelConfig config;
  config.layers = fields.size("num_hidden_layers");
  config.heads = fields.size("num_attention_heads");
  config.width = fields.size("hidden_size");
  config.mlp_width = fields.size("intermediate_size");
  config.context = fields.size("max_position_embeddings");
  config.kv_heads = fields.optional_size("num_key_value_heads").value_or(config.heads);
  if (const auto given = fields.optional_size("head_dim")) {
    config.head_size = *given;
  } else {
    if (config.width % config.heads != 0)
      fields.refuse("num_attention_heads", fmt::format("{} heads do not divide a width of {}",
                                                       config.heads, config.width));
    config.head_size = config.width / config.heads;
  }
  if (config.heads % config.kv_heads != 0)
    fields.refuse("num_key_value_heads",
                  fmt::format("{} do not divide {} query heads", config.kv_heads, config.heads));
  if (config.heads * config.head_size > ConfigFields::kLargestSize)
    fields.refuse("head_dim",
                  fmt::format("{} heads of {} are too wide", config.heads, config.head_size));
  return config;
}

ModelConfig read_gpt_neox(const ConfigFields& fields) {
  ModelConfig config = read_sizes(fields);
  if (config.kv_heads != config.heads)
    fields.refuse("num_key_value_heads", "gpt_neox has no grouped keys");
  if (config.heads * config.head_size != config.width)
    fields.refuse("head_dim", "gpt_neox has heads of hidden_size / num_attention_heads");
  config.norm_epsilon = read_epsilon(fields, "layer_norm_eps", 1e-5);
  config.activation = read_activation(fields, "hidden_act", "gelu");
  config.parallel_residual = fields.flag("use_parallel_residual", true);
  config.rope = read_rope(fields, {"rotary_emb_base", "rotary_pct", 0.25}, config.head_size);
  config.qkv_bias = config.attention_output_bias = fields.flag("attention_bias", true);
  config.mlp_bias = true;
  config.tied_head = fields.flag("tie_word_embeddings", false);
  return config;
}

// llama, mistral, qwen2 and qwen3 are one architecture with different switches.
ModelConfig read_llama(const ConfigFields& fields, std::string_view model_type) {
  ModelConfig config = read_sizes(fields);
  config.norm = Norm::kRms;
  config.norm_epsilon = read_epsilon(fields, "rms_norm_eps", 1e-6);
  config.activation = read_activation(fields, "hidden_act", "silu");
  config.gated_mlp = true;
  config.rope = read_rope(fields, {"rope_theta", "partial_rotary_factor", 1}, config.head_size);
  if (config.rope.dims != config.head_size)
    fields.refuse("partial_rotary_factor", fmt::format("{} rotates whole heads", model_type));
  config.qk_norm = model_type == "qwen3";
  config.tied_head = fields.flag("tie_word_embeddings", false);
  if (model_type == "llama" || model_type == "qwen3")
    config.qkv_bias = config.attention_output_bias = fields.flag("attention_bias", false);
  else
    expect_flag(fields, "attention_bias", false);
  if (model_type == "qwen2") config.qkv_bias = true;  // always there, and not in the file
  if (model_type == "llama")
    config.mlp_bias = fields.flag("mlp_bias", false);
  else
    expect_flag(fields, "mlp_bias", false);
  return config;
}

std::optional<int64_t> sliding_window(const ConfigFields& fields, std::string_view model_type) {
  const bool qwen = model_type == "qwen2" || model_type == "qwen3";
  if (qwen && !fields.flag("use_sliding_window", false)) return std::nullopt;
  // Transformers takes a window of 4096 where these families' files do not mention one.
  if ((qwen || model_type == "mistral") && !fields.object().contains("sliding_window")) return 4096;
  return fields.optional_size("sliding_window");
}

// A teacher, or any other model with softmax attention.
ModelConfig read_teacher(const Json& json, std::string_view where) {
  const ConfigFields fields(json, std::string(where));
  const auto model_type = fields.text("model_type");
  if (!model_type) fields.refuse("model_type", "missing; this is not the config.json of a model");
  ModelConfig config;
  if (*model_type == "gpt2") {
    config = read_gpt2(fields);
  } else if (*model_type == "gpt_neox") {
    config = read_gpt_neox(fields);
  } else if (*model_type == "llama" || *model_type == "mistral" || *model_type == "qwen2" ||
             *model_type == "qwen3") {
    config = read_llama(fields, *model_type);
  } else {
    fields.refuse(
        "model_type",
        fmt::format("{} is not supported; gpt2, gpt_neox, llama, mistral, qwen2 and qwen3 "
                    "are",
                    excerpt(*model_type)));
  }
  config.model_type = *model_type;
  config.vocabulary = fields.size("vocab_size");
  config.begin_of_text = read_token(fields, "bos_token_id", config.vocabulary);
  config.end_of_text = read_token(fields, "eos_token_id", config.vocabulary);
  refuse_sliding_window(fields, sliding_window(fields, *model_type), config.context);
  refuse_layer_types(fields, config.layers);
  refuse_quantization(fields);
  return config;
}

}  // namespace

ModelConfig read_config(const Json& json, std::string_view where) {
  const ConfigFields fields(json, std::string(where));
  if (fields.text("model_type") != "dofla") return read_teacher(json, where);
  // A model whose weights dofla rounded has the form of a student, whatever its attention.
  const Json* weights = fields.find("weights");
  if (weights != nullptr && *weights != "int8")
    fields.refuse("weights", "expected \"int8\"; a newer dofla may have written it");
  for (const std::string_view block : {"teacher", "linear_attention"}) {
    const bool optional = block == "linear_attention" && weights != nullptr;
    if (fields.find(block) == nullptr && !optional)
      fields.refuse(block, "missing; expected the config.json of a dofla student");
  }
  refuse_quantization(fields);
  return read_teacher(*fields.find("teacher"), fmt::format("{}: teacher", where));
}

}  // namespace dofla
