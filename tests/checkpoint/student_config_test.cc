#include <gtest/gtest.h>

#include "tests/checkpoint/hf_configs.h"

namespace dofla {
namespace {

using test::expect_refused;
using test::family;
using test::read;
using test::with;
using test::without;

TEST(StudentConfig, AStudentHasTheConfigurationOfItsTeacher) {
  // What Transformers says beside it counts for nothing.
  const Json student = {{"model_type", "dofla"},
                        {"teacher", family("qwen3")},
                        {"linear_attention", Json::object()},
                        {"vocab_size", 7},
                        {"tie_word_embeddings", true}};
  const ModelConfig config = read(student);
  EXPECT_EQ(config.model_type, "qwen3");
  EXPECT_EQ(config.vocabulary, 1000);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_FALSE(config.tied_head);
  expect_refused(without(student, "teacher"), "teacher", "missing");
  expect_refused(without(student, "linear_attention"), "linear_attention", "missing");
  expect_refused(with(student, {{"teacher", 3}}), "teacher", "expected a JSON object");
  expect_refused(with(student, {{"teacher", student}}), "teacher: model_type", "not supported");
  expect_refused(with(student, {{"teacher", without(family("llama"), "vocab_size")}}),
                 "teacher: vocab_size", "missing");
  expect_refused(with(student, {{"quantization_config", {{"bits", 4}}}}), "quantization_config",
                 "not supported");
}

}  // namespace
}  // namespace dofla
