// Configurations to read, to change and to break.
#pragma once

#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "dofla/checkpoint/hf_config.h"
#include "tests/support/expect_error.h"

namespace dofla::test {

inline Json gpt2() {
  return {{"model_type", "gpt2"}, {"n_layer", 2},       {"n_head", 4}, {"n_embd", 32},
          {"n_positions", 128},   {"vocab_size", 1000}, {"n_ctx", 64}};
}

inline Json family(const char* model_type) {
  return {{"model_type", model_type},      {"num_hidden_layers", 2},
          {"num_attention_heads", 4},      {"hidden_size", 32},
          {"intermediate_size", 88},       {"vocab_size", 1000},
          {"max_position_embeddings", 128}};
}

inline Json with(Json base, const Json& changes) {
  base.update(changes);
  return base;
}

inline Json without(Json base, const char* field) {
  base.erase(field);
  return base;
}

inline ModelConfig read(const Json& json) {
  return read_config(json, "config.json");
}

inline void expect_refused(const Json& json, std::string_view field, std::string_view defect) {
  SCOPED_TRACE(json.dump());
  expect_error([&] { read(json); }, {"config.json: ", field, defect});
}

inline const std::vector<const char*> kLlamaFamily = {"llama", "mistral", "qwen2", "qwen3"};

}  // namespace dofla::test
