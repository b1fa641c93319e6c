// Rotary embeddings as configurations describe them.
#include "dofla/checkpoint/rope_config.h"

#include "tests/checkpoint/hf_configs.h"

namespace dofla {
namespace {

using test::expect_refused;
using test::family;
using test::read;
using test::with;
using test::without;

// A block of Transformers 5, or the rope_scaling of older files.
Json llama3_block() {
  return {{"rope_type", "llama3"},
          {"factor", 8.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 64}};
}

TEST(RopeConfig, Llama3RopeInBothSpellings) {
  const Json older =
      with(family("llama"), {{"rope_theta", 500000}, {"rope_scaling", llama3_block()}});
  const Json newer =
      with(family("llama"), {{"rope_parameters", with(llama3_block(), {{"rope_theta", 500000}})}});
  for (const Json& json : {older, newer}) {
    const Rope rope = read(json).rope;
    EXPECT_EQ(rope.theta, 500000);
    ASSERT_TRUE(rope.llama3);
    EXPECT_EQ(rope.llama3->factor, 8);
    EXPECT_EQ(rope.llama3->low_frequency_factor, 1);
    EXPECT_EQ(rope.llama3->high_frequency_factor, 4);
    EXPECT_EQ(rope.llama3->original_context, 64);
  }
}

TEST(RopeConfig, RefusesOtherRopeTypes) {
  for (const char* block : {"rope_scaling", "rope_parameters"})
    for (const char* key : {"rope_type", "type"})
      for (const char* type : {"linear", "dynamic", "yarn", "longrope", "su", "mrope", "Default"})
        expect_refused(with(family("llama"), {{block, {{key, type}, {"beta_fast", 32}}}}),
                       fmt::format("{}: rope_type", block), fmt::format("\"{}\" is not", type));
}

TEST(RopeConfig, RefusesBadRopeSettings) {
  const auto refused = [](const Json& block, std::string_view field, std::string_view defect) {
    expect_refused(with(family("llama"), {{"rope_parameters", block}}),
                   fmt::format("rope_parameters: {}", field), defect);
  };
  for (const char* field :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    refused(without(llama3_block(), field), field, "missing");
    refused(with(llama3_block(), {{field, 0}}), field, "found 0");
    refused(with(llama3_block(), {{field, "8"}}), field, "found \"8\"");
  }
  refused(with(llama3_block(), {{"factor", 0.5}}), "factor", "at least 1");
  refused(with(llama3_block(), {{"low_freq_factor", 4.0}}), "low_freq_factor", "less than");
  refused({{"rope_theta", -1}}, "rope_theta", "positive");
  refused({{"full_attention", {{"rope_theta", 1}}}}, "full_attention", "not supported");
  refused({{"mscale", 1}}, "mscale", "not supported");
  refused({{"rope_type", 3}}, "rope_type", "expected a string");
  expect_refused(with(family("llama"), {{"rope_parameters", 3}}), "rope_parameters", "JSON object");
  expect_refused(with(family("llama"), {{"rope_theta", 0}}), "rope_theta", "positive");
  expect_refused(with(family("llama"), {{"rope_theta", true}}), "rope_theta", "a number");
}

TEST(RopeConfig, RefusesRopeSettingsThatContradict) {
  expect_refused(
      with(family("llama"), {{"rope_theta", 5}, {"rope_parameters", {{"rope_theta", 6}}}}),
      "rope_theta", "6, but rope_theta outside is 5");
  expect_refused(with(family("llama"), {{"rope_scaling", llama3_block()},
                                        {"rope_parameters", {{"rope_type", "default"}}}}),
                 "rope_scaling", "differs from rope_parameters");
}

TEST(RopeConfig, RefusesRotationsThatDoNotFitTheHead) {
  // Heads of 8 coordinates.
  expect_refused(with(family("gpt_neox"), {{"rotary_pct", 0.4}}), "rotary_pct",
                 "rotates 3 of the 8");
  expect_refused(with(family("gpt_neox"), {{"rotary_pct", 0.1}}), "rotary_pct",
                 "rotates 0 of the 8");
  expect_refused(with(family("gpt_neox"), {{"rotary_pct", 1.5}}), "rotary_pct", "at most 1");
  expect_refused(with(family("gpt_neox"), {{"rotary_pct", -1}}), "rotary_pct", "positive");
  expect_refused(with(family("llama"), {{"head_dim", 7}}), "config.json", "rotates 7 of the 7");
  for (const Json& change : {Json{{"partial_rotary_factor", 0.5}},
                             Json{{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}})
    expect_refused(with(family("llama"), change), "partial_rotary_factor", "rotates whole heads");
}

}  // namespace
}  // namespace dofla
