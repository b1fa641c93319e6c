#include "dofla/checkpoint/hf_config.h"

#include <gtest/gtest.h>

#include "tests/checkpoint/hf_configs.h"

namespace dofla {
namespace {

using test::expect_error;
using test::expect_refused;
using test::family;
using test::gpt2;
using test::kLlamaFamily;
using test::read;
using test::with;
using test::without;

TEST(HfConfig, Gpt2WithTransformersDefaults) {
  const ModelConfig config = read(gpt2());
  EXPECT_EQ(config.model_type, "gpt2");
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.heads, 4);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_size, 8);
  EXPECT_EQ(config.width, 32);
  EXPECT_EQ(config.mlp_width, 128);
  EXPECT_EQ(config.vocabulary, 1000);
  EXPECT_EQ(config.context, 128);
  EXPECT_EQ(config.norm, Norm::kLayer);
  EXPECT_EQ(config.norm_epsilon, 1e-5);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_FALSE(config.gated_mlp);
  EXPECT_FALSE(config.parallel_residual);
  EXPECT_TRUE(config.learned_positions);
  EXPECT_EQ(config.rope.dims, 0);
  EXPECT_FALSE(config.qk_norm);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_TRUE(config.attention_output_bias);
  EXPECT_TRUE(config.mlp_bias);
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(config.end_of_text, std::nullopt);
}

TEST(HfConfig, Gpt2WithEverySetting) {
  const ModelConfig config = read(with(gpt2(), {{"n_inner", 50},
                                                {"activation_function", "relu"},
                                                {"layer_norm_epsilon", 1e-3},
                                                {"tie_word_embeddings", false},
                                                {"bos_token_id", 3},
                                                {"eos_token_id", 4}}));
  EXPECT_EQ(config.mlp_width, 50);
  EXPECT_EQ(config.activation, Activation::kRelu);
  EXPECT_EQ(config.norm_epsilon, 1e-3);
  EXPECT_FALSE(config.tied_head);
  EXPECT_EQ(config.begin_of_text, 3);
  EXPECT_EQ(config.end_of_text, 4);
}

TEST(HfConfig, GptNeoxWithTransformersDefaults) {
  const ModelConfig config = read(family("gpt_neox"));
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.heads, 4);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_size, 8);
  EXPECT_EQ(config.width, 32);
  EXPECT_EQ(config.mlp_width, 88);
  EXPECT_EQ(config.context, 128);
  EXPECT_EQ(config.norm, Norm::kLayer);
  EXPECT_EQ(config.norm_epsilon, 1e-5);
  EXPECT_EQ(config.activation, Activation::kGelu);
  EXPECT_FALSE(config.gated_mlp);
  EXPECT_TRUE(config.parallel_residual);
  EXPECT_FALSE(config.learned_positions);
  EXPECT_EQ(config.rope.dims, 2);  // a quarter
  EXPECT_EQ(config.rope.theta, 10000);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_TRUE(config.attention_output_bias);
  EXPECT_TRUE(config.mlp_bias);
  EXPECT_FALSE(config.tied_head);
}

TEST(HfConfig, GptNeoxInBothSpellings) {
  const Json older = with(family("gpt_neox"), {{"rotary_pct", 0.5},
                                               {"rotary_emb_base", 5000},
                                               {"use_parallel_residual", false},
                                               {"attention_bias", false},
                                               {"layer_norm_eps", 1e-6}});
  const Json newer =
      with(without(without(older, "rotary_pct"), "rotary_emb_base"),
           {{"rope_parameters",
             {{"partial_rotary_factor", 0.5}, {"rope_theta", 5000}, {"rope_type", "default"}}}});
  for (const Json& json : {older, newer}) {
    const ModelConfig config = read(json);
    EXPECT_EQ(config.rope.dims, 4);
    EXPECT_EQ(config.rope.theta, 5000);
    EXPECT_FALSE(config.parallel_residual);
    EXPECT_FALSE(config.qkv_bias);
    EXPECT_FALSE(config.attention_output_bias);
    EXPECT_TRUE(config.mlp_bias);
    EXPECT_EQ(config.norm_epsilon, 1e-6);
  }
}

TEST(HfConfig, LlamaFamilyWithTransformersDefaults) {
  for (const char* model_type : kLlamaFamily) {
    SCOPED_TRACE(model_type);
    const ModelConfig config = read(family(model_type));
    EXPECT_EQ(config.model_type, model_type);
    EXPECT_EQ(config.kv_heads, 4);
    EXPECT_EQ(config.head_size, 8);
    EXPECT_EQ(config.mlp_width, 88);
    EXPECT_EQ(config.norm, Norm::kRms);
    EXPECT_EQ(config.norm_epsilon, 1e-6);
    EXPECT_EQ(config.activation, Activation::kSilu);
    EXPECT_TRUE(config.gated_mlp);
    EXPECT_FALSE(config.parallel_residual);
    EXPECT_FALSE(config.learned_positions);
    EXPECT_EQ(config.rope.dims, 8);
    EXPECT_EQ(config.rope.theta, 10000);
    EXPECT_FALSE(config.rope.llama3);
    EXPECT_EQ(config.qk_norm, config.model_type == "qwen3");
    EXPECT_EQ(config.qkv_bias, config.model_type == "qwen2");
    EXPECT_FALSE(config.attention_output_bias);
    EXPECT_FALSE(config.mlp_bias);
    EXPECT_FALSE(config.tied_head);
  }
}

TEST(HfConfig, LlamaFamilyWithEverySetting) {
  for (const char* model_type : kLlamaFamily) {
    SCOPED_TRACE(model_type);
    const ModelConfig config = read(with(family(model_type), {{"num_key_value_heads", 2},
                                                              {"head_dim", 24},
                                                              {"rope_theta", 500000},
                                                              {"rms_norm_eps", 1e-5},
                                                              {"hidden_act", "gelu"},
                                                              {"tie_word_embeddings", true}}));
    EXPECT_EQ(config.kv_heads, 2);
    EXPECT_EQ(config.head_size, 24);  // not width / heads
    EXPECT_EQ(config.rope.dims, 24);
    EXPECT_EQ(config.rope.theta, 500000);
    EXPECT_EQ(config.norm_epsilon, 1e-5);
    EXPECT_EQ(config.activation, Activation::kGelu);
    EXPECT_TRUE(config.tied_head);
  }
}

TEST(HfConfig, Biases) {
  for (const char* model_type : {"llama", "qwen3"}) {
    const ModelConfig config = read(with(family(model_type), {{"attention_bias", true}}));
    EXPECT_TRUE(config.qkv_bias);
    EXPECT_TRUE(config.attention_output_bias);
    EXPECT_FALSE(config.mlp_bias);
  }
  EXPECT_TRUE(read(with(family("llama"), {{"mlp_bias", true}})).mlp_bias);
  for (const char* model_type : {"mistral", "qwen2"})
    expect_refused(with(family(model_type), {{"attention_bias", true}}), "attention_bias",
                   "true is not supported");
  for (const char* model_type : {"mistral", "qwen2", "qwen3"})
    expect_refused(with(family(model_type), {{"mlp_bias", true}}), "mlp_bias",
                   "true is not supported");
}

TEST(HfConfig, RefusesSlidingWindows) {
  // Transformers gives mistral a window of 4096 unless the file says otherwise.
  const Json mistral = with(family("mistral"), {{"max_position_embeddings", 8192}});
  expect_refused(mistral, "sliding_window", "a window of 4096 tokens in a context of 8192");
  EXPECT_NO_THROW(read(with(mistral, {{"sliding_window", nullptr}})));
  EXPECT_NO_THROW(read(with(mistral, {{"sliding_window", 8192}})));  // hides nothing
  expect_refused(with(mistral, {{"sliding_window", 8191}}), "sliding_window", "8191");
  expect_refused(with(family("llama"), {{"sliding_window", 64}}), "sliding_window", "64");
  for (const char* model_type : {"qwen2", "qwen3"}) {
    const Json qwen = with(family(model_type), {{"sliding_window", 64}});
    EXPECT_NO_THROW(read(qwen));
    EXPECT_NO_THROW(read(with(qwen, {{"use_sliding_window", false}})));
    expect_refused(with(qwen, {{"use_sliding_window", true}}), "sliding_window", "64");
  }
}

TEST(HfConfig, RefusesOtherLayerTypes) {
  const auto types = [](const Json& value) {
    return with(family("qwen2"), {{"layer_types", value}});
  };
  EXPECT_NO_THROW(read(types({"full_attention", "full_attention"})));
  expect_refused(types({"full_attention", "sliding_attention"}), "layer_types",
                 "\"sliding_attention\" is not supported");
  expect_refused(types({"full_attention"}), "layer_types", "an array of 2 layers");
  expect_refused(types("full_attention"), "layer_types", "an array of 2 layers");
  expect_refused(types({1, 2}), "layer_types", "1 is not supported");
}

TEST(HfConfig, RefusesUnknownModels) {
  expect_refused(
      with(family("llama"), {{"model_type", "gemma3"}}), "model_type",
      "\"gemma3\" is not supported; gpt2, gpt_neox, llama, mistral, qwen2 and qwen3 are");
  expect_refused(with(family("llama"), {{"model_type", ""}}), "model_type",
                 "\"\" is not supported");
  expect_refused(with(family("llama"), {{"model_type", 3}}), "model_type", "expected a string");
  expect_refused(without(family("llama"), "model_type"), "model_type", "missing");
  expect_refused(Json::array(), "config.json", "expected a JSON object, found []");
  expect_refused(nullptr, "config.json", "expected a JSON object, found null");
}

TEST(HfConfig, RefusesUnknownActivations) {
  expect_refused(with(family("llama"), {{"hidden_act", "quick_gelu"}}), "hidden_act",
                 "\"quick_gelu\" is not supported");
  expect_refused(with(gpt2(), {{"activation_function", "tanh"}}), "activation_function",
                 "\"tanh\" is not supported");
  expect_refused(with(gpt2(), {{"activation_function", 1}}), "activation_function", "a string");
}

TEST(HfConfig, RefusesSettingsThatChangeTheNumbers) {
  expect_refused(with(gpt2(), {{"scale_attn_weights", false}}), "scale_attn_weights",
                 "false is not");
  expect_refused(with(gpt2(), {{"scale_attn_by_inverse_layer_idx", true}}),
                 "scale_attn_by_inverse_layer_idx", "true is not");
  expect_refused(with(gpt2(), {{"add_cross_attention", true}}), "add_cross_attention",
                 "true is not");
  expect_refused(with(family("llama"), {{"quantization_config", {{"quant_method", "gptq"}}}}),
                 "quantization_config", "not supported");
  EXPECT_NO_THROW(read(with(family("llama"), {{"quantization_config", nullptr}})));
}

TEST(HfConfig, RefusesBadSizes) {
  std::vector<std::pair<Json, std::string>> sizes;
  for (const char* field : {"n_layer", "n_head", "n_embd", "n_positions", "vocab_size"})
    sizes.emplace_back(gpt2(), field);
  for (const char* model_type : {"gpt_neox", "llama"})
    for (const char* field : {"num_hidden_layers", "num_attention_heads", "hidden_size",
                              "intermediate_size", "max_position_embeddings", "vocab_size"})
      sizes.emplace_back(family(model_type), field);
  for (const auto& [base, field] : sizes) {
    expect_refused(without(base, field.c_str()), field, "missing");
    expect_refused(with(base, {{field, nullptr}}), field, "missing");
    for (const Json& bad : {Json(0), Json(-4), Json(4.0), Json("4"), Json(true), Json::array({4}),
                            Json((int64_t{1} << 28) + 1), Json(INT64_MAX), Json(UINT64_MAX)})
      expect_refused(with(base, {{field, bad}}), field,
                     "expected an integer from 1 to 268435456, found " + bad.dump());
  }
  for (const char* field : {"num_key_value_heads", "head_dim", "sliding_window"})
    expect_refused(with(family("llama"), {{field, 0}}), field, "found 0");
  expect_refused(with(gpt2(), {{"n_inner", 0}}), "n_inner", "found 0");
}

TEST(HfConfig, RefusesHeadsThatDoNotDivide) {
  expect_refused(with(gpt2(), {{"n_head", 5}}), "n_head", "5 heads do not divide a width of 32");
  expect_refused(with(family("llama"), {{"num_attention_heads", 5}}), "num_attention_heads",
                 "5 heads do not divide a width of 32");
  expect_refused(with(family("llama"), {{"num_key_value_heads", 3}}), "num_key_value_heads",
                 "3 do not divide 4 query heads");
  expect_refused(with(family("llama"), {{"num_key_value_heads", 8}}), "num_key_value_heads",
                 "8 do not divide 4 query heads");
  expect_refused(with(family("gpt_neox"), {{"num_key_value_heads", 2}}), "num_key_value_heads",
                 "no grouped keys");
  expect_refused(with(family("gpt_neox"), {{"head_dim", 16}}), "head_dim", "hidden_size");
  expect_refused(with(family("llama"), {{"head_dim", 1 << 28}}), "head_dim", "too wide");
}

TEST(HfConfig, RefusesWrongTypes) {
  expect_refused(with(gpt2(), {{"tie_word_embeddings", 1}}), "tie_word_embeddings",
                 "true or false");
  expect_refused(with(family("llama"), {{"attention_bias", "no"}}), "attention_bias",
                 "true or false");
  expect_refused(with(family("llama"), {{"rms_norm_eps", "1e-5"}}), "rms_norm_eps", "a number");
  expect_refused(with(family("llama"), {{"rms_norm_eps", -1e-5}}), "rms_norm_eps", "from 0 up");
  expect_refused(with(gpt2(), {{"layer_norm_epsilon", false}}), "layer_norm_epsilon", "a number");
  // JSON has no infinity, but a caller's Json may.
  expect_refused(with(gpt2(), {{"layer_norm_epsilon", INFINITY}}), "layer_norm_epsilon",
                 "from 0 up");
  expect_refused(with(family("llama"), {{"rope_theta", NAN}}), "rope_theta", "positive");
}

TEST(HfConfig, TokensThatDelimitText) {
  const auto end = [](const Json& value) {
    return read(with(family("llama"), {{"eos_token_id", value}})).end_of_text;
  };
  EXPECT_EQ(end(7), 7);
  EXPECT_EQ(end({9, 7}), 9);
  EXPECT_EQ(end(nullptr), std::nullopt);
  EXPECT_EQ(end(999), 999);
  EXPECT_EQ(end(1000), std::nullopt);  // no such row in the embedding
  for (const Json& bad : {Json(-1), Json("</s>"), Json(1.5), Json::array(), Json::array({"a"})})
    expect_refused(with(family("llama"), {{"eos_token_id", bad}}), "eos_token_id", "a token id");
}

}  // namespace
}  // namespace dofla
