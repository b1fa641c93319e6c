// The form of a student's folder: for Transformers, and as dofla 0.1.0 wrote it.
#include "dofla/linear/student_files.h"

#include <gtest/gtest.h>

#include "dofla/linear/linear_model.h"
#include "dofla/linear/transformers_files.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

class StudentFiles : public testing::Test {
 protected:
  const test::ScratchFolder scratch;
  const Checkpoint teacher{test::fixtures() / "qwen3"};
  const Tensor ids = test::some_ids(teacher.config(), 1, 20);

  fs::path written(const char* name, const Checkpoint& of) const {
    fs::create_directory(scratch.path() / name);
    write_linear_model(scratch.path() / name, of, test::hybrid_features(of.config()), {{"a", 1}});
    return scratch.path() / name;
  }
};

// No other tool takes it for its teacher.
TEST_F(StudentFiles, TheConfigurationNamesTheStudent) {
  const fs::path folder = written("student", teacher);
  const Json config = load_json(folder / "config.json");
  EXPECT_EQ(config["model_type"], "dofla");
  EXPECT_EQ(config["architectures"], Json({"DoflaForCausalLM"}));
  EXPECT_EQ(config["auto_map"]["AutoModelForCausalLM"], "modeling_dofla.DoflaForCausalLM");
  EXPECT_EQ(config["auto_map"]["AutoConfig"], "configuration_dofla.DoflaConfig");
  EXPECT_EQ(config["teacher"], teacher.config_json());
  EXPECT_EQ(config["linear_attention"]["a"], 1);
  EXPECT_EQ(config["dtype"], teacher.config_json()["dtype"]);
  EXPECT_FALSE(config.contains("hidden_size"));
  for (const auto& [name, text] : kTransformersFiles) EXPECT_EQ(read_text(folder / name), text);
}

// The block stood in the teacher's config.json. Such a folder is read, and written anew when it is
// trained.
TEST_F(StudentFiles, FoldersOf010AreRead) {
  const fs::path folder = written("student", teacher);
  const Tensor expected = load_model(Checkpoint(folder)).forward(ids);
  const Json now = load_json(folder / "config.json");
  Json before = now["teacher"];
  before["linear_attention"] = now["linear_attention"];
  write_whole(folder / "config.json", before.dump());
  const Checkpoint old(folder);
  EXPECT_TRUE(is_linear(old));
  EXPECT_TRUE(test::same_bits(load_model(old).forward(ids), expected));

  Transformer model = load_model(old);
  model.make_trainable();
  const fs::path trained = scratch.path() / "trained", again = scratch.path() / "again";
  fs::create_directory(trained);
  write_trained_model(trained, old, model, {{"task", "none"}});
  Json config = load_json(trained / "config.json");
  EXPECT_EQ(config["training"]["task"], "none");
  EXPECT_EQ(config["teacher"], now["teacher"]);
  EXPECT_EQ(config["linear_attention"], now["linear_attention"]);
  EXPECT_EQ(config["model_type"], "dofla");
  EXPECT_TRUE(fs::exists(trained / "modeling_dofla.py"));
  EXPECT_TRUE(test::same_bits(load_model(Checkpoint(trained)).forward(ids), expected));
  // And once more, from the new form.
  fs::create_directory(again);
  write_trained_model(again, Checkpoint(trained), model, {{"task", "another"}});
  config["training"]["task"] = "another";
  EXPECT_EQ(load_json(again / "config.json"), config);
}

// A student of a student has the same teacher.
TEST_F(StudentFiles, AStudentCanBeATeacher) {
  const Checkpoint first(written("student", teacher));
  const fs::path second = written("second", first);
  EXPECT_EQ(load_json(second / "config.json")["teacher"], teacher.config_json());
  EXPECT_TRUE(
      test::same_bits(load_model(Checkpoint(second)).forward(ids), load_model(first).forward(ids)));
}

// What Transformers would not know is left out, and GPT-2's bare names are completed.
TEST_F(StudentFiles, TensorsHaveTheNamesOfALanguageModel) {
  const Checkpoint bare(test::assets() / "wiki-mini");
  ASSERT_TRUE(bare.contains("wte.weight"));
  const fs::path folder = scratch.path() / "bare";
  fs::create_directory(folder);
  for (const char* file : {"config.json", "tokenizer.json"})
    fs::copy_file(bare.folder() / file, folder / file);
  NamedTensors tensors;
  for (const std::string& name : bare.names()) tensors.emplace_back(name, bare.tensor(name));
  tensors.emplace_back("lm_head.weight", bare.tensor("wte.weight"));  // a copy: the head is tied
  tensors.emplace_back("h.0.attn.bias", Tensor::zeros({1, 1, 4, 4}));
  write_safetensors(folder / "model.safetensors", tensors);
  const Checkpoint source(folder);
  const Checkpoint student(written("student", source));
  EXPECT_TRUE(student.contains("transformer.wte.weight"));
  EXPECT_TRUE(student.contains("linear_attention.0.z"));
  for (const std::string& name : student.names())
    EXPECT_TRUE(name.starts_with("transformer.") || name.starts_with("linear_attention.")) << name;
  EXPECT_FALSE(student.contains("transformer.h.0.attn.bias"));
  EXPECT_TRUE(
      test::same_bits(load_model(student).forward(ids),
                      make_linear_model(bare, test::hybrid_features(bare.config())).forward(ids)));
  EXPECT_TRUE(fs::exists(student.folder() / "tokenizer.json"));
}

// As save_pretrained leaves it: fields of Transformers' own, the Python files wherever they are.
TEST_F(StudentFiles, WhatTransformersAddsChangesNothing) {
  const fs::path folder = written("student", teacher);
  const Tensor expected = load_model(Checkpoint(folder)).forward(ids);
  Json config = load_json(folder / "config.json");
  config.update({{"_name_or_path", "elsewhere"},
                 {"transformers_version", "5.17.0"},
                 {"tie_word_embeddings", false},
                 {"bos_token_id", nullptr},
                 {"eos_token_id", {1, 2}},
                 {"use_cache", true}});
  write_whole(folder / "config.json", config.dump());
  fs::remove(folder / "modeling_dofla.py");
  EXPECT_TRUE(test::same_bits(load_model(Checkpoint(folder)).forward(ids), expected));
}

}  // namespace
}  // namespace dofla
