// A config.json of arbitrary bytes is either refused with an Error or gives a configuration whose
// sizes fit together.
#include <string_view>

#include "dofla/checkpoint/hf_config.h"
#include "dofla/core/error.h"

namespace {

void expect(bool condition) {
  if (!condition) __builtin_trap();
}

void check(const dofla::ModelConfig& config) {
  for (const int64_t size : {config.layers, config.heads, config.kv_heads, config.head_size,
                             config.width, config.mlp_width, config.vocabulary, config.context})
    expect(size > 0 && size <= int64_t{1} << 30);
  expect(config.heads % config.kv_heads == 0);
  expect(config.heads * config.head_size <= int64_t{1} << 30);
  expect(config.rope.dims >= 0 && config.rope.dims <= config.head_size);
  expect(config.rope.dims % 2 == 0 && config.rope.theta > 0);
  expect((config.rope.dims == 0) == config.learned_positions);
  expect(config.norm_epsilon >= 0);
  for (const auto& token : {config.begin_of_text, config.end_of_text})
    expect(!token || (*token >= 0 && *token < config.vocabulary));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    check(dofla::read_config(dofla::parse_json(text, "config.json"), "config.json"));
  } catch (const dofla::Error&) {
  }
  return 0;
}
