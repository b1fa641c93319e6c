#include "dofla/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using test::expect_error;

const char* const kConfig = R"({"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 2,
                                "n_positions": 4, "vocab_size": 3})";

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() { write_whole(folder_ / "config.json", kConfig); }

  void write_index(const Json& weight_map) {
    write_whole(folder_ / "model.safetensors.index.json", Json{{"weight_map", weight_map}}.dump());
  }
  void write_shards() {
    write_safetensors(folder_ / "one.safetensors", {{"a", Tensor::zeros({2, 3})}});
    write_safetensors(folder_ / "two.safetensors",
                      {{"b", Tensor::zeros({4}, DType::kBF16)}, {"c", Tensor::zeros({1})}});
  }
  void expect_refused(std::initializer_list<std::string_view> parts) {
    expect_error([&] { Checkpoint checkpoint(folder_); }, parts);
  }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }

  test::ScratchFolder scratch_;
  fs::path folder_ = scratch_.path();
};

using Names = std::vector<std::string>;

TEST_F(CheckpointTest, OpensASingleFile) {
  write_safetensors(folder_ / "model.safetensors",
                    {{"b", Tensor::zeros({2, 3})}, {"a", Tensor({1})}});
  const Checkpoint checkpoint(folder_);
  EXPECT_EQ(checkpoint.folder(), folder_);
  EXPECT_EQ(checkpoint.config().width, 2);
  EXPECT_EQ(checkpoint.config_json()["n_embd"], 2);
  EXPECT_EQ(checkpoint.names(), (Names{"a", "b"}));
  EXPECT_TRUE(checkpoint.contains("a"));
  EXPECT_FALSE(checkpoint.contains("c"));
  EXPECT_EQ(checkpoint.tensor("b").shape(), (Shape{2, 3}));
  EXPECT_EQ(checkpoint.tensor("b", {2, 3}).dtype(), DType::kF32);
}

TEST_F(CheckpointTest, OpensShards) {
  write_shards();
  write_index({{"a", "one.safetensors"}, {"b", "two.safetensors"}, {"c", "two.safetensors"}});
  const Checkpoint checkpoint(folder_);
  EXPECT_EQ(checkpoint.names(), (Names{"a", "b", "c"}));
  EXPECT_EQ(checkpoint.tensor("a", {2, 3}).count(), 6);
  EXPECT_EQ(checkpoint.tensor("b", {4}).dtype(), DType::kBF16);
  expect_error([&] { checkpoint.tensor("d"); },
               {file("model.safetensors.index.json"), "no tensor d"});
  expect_error([&] { checkpoint.tensor("b", {5}); },
               {file("two.safetensors") + ": b: expected [5], found [4]"});
}

TEST_F(CheckpointTest, PrefersTheSingleFile) {  // as Transformers does
  write_shards();
  write_index({{"a", "one.safetensors"}});
  write_safetensors(folder_ / "model.safetensors", {{"whole", Tensor({1})}});
  EXPECT_EQ(Checkpoint(folder_).names(), Names{"whole"});
}

TEST_F(CheckpointTest, RefusesAMissingTensor) {
  write_safetensors(folder_ / "model.safetensors", {{"a", Tensor({2})}});
  const Checkpoint checkpoint(folder_);
  for (const auto& action : {std::function([&] { checkpoint.tensor("b"); }),
                             std::function([&] { checkpoint.tensor("b", {2}); })})
    expect_error(action, {file("model.safetensors") + ": no tensor b"});
}

TEST_F(CheckpointTest, RefusesAMisshapenTensor) {
  write_safetensors(folder_ / "model.safetensors", {{"a", Tensor({768, 768})}});
  const Checkpoint checkpoint(folder_);
  expect_error(
      [&] {
        checkpoint.tensor("a", {768, 2304});
      },
      {file("model.safetensors") + ": a: expected [768, 2304], found [768, 768]"});
}

TEST_F(CheckpointTest, RefusesATensorThatIsNotOfFloats) {
  write_safetensors(folder_ / "model.safetensors", {{"a", Tensor::zeros({2}, DType::kI32)}});
  const Checkpoint checkpoint(folder_);
  EXPECT_EQ(checkpoint.tensor("a").dtype(), DType::kI32);
  expect_error(
      [&] { checkpoint.tensor("a", {2}); },
      {file("model.safetensors") + ": a: expected F64, F32, F16, BF16 or I8 with its _scale, found "
                                   "I32"});
}

TEST_F(CheckpointTest, RefusesAFolderThatIsNoModel) {
  expect_refused({folder_.string(), "no weights; expected model.safetensors"});
  write_whole(folder_ / "pytorch_model.bin", "x");
  expect_refused({folder_.string(), "only pytorch_model.bin", "safetensors"});
  fs::remove(folder_ / "config.json");
  expect_refused({folder_.string(), "no config.json", "Hugging Face model folder"});
  folder_ /= "missing";
  expect_refused({folder_.string(), "not a folder"});
  folder_ = scratch_.path() / "pytorch_model.bin";
  expect_refused({folder_.string(), "not a folder"});
}

TEST_F(CheckpointTest, RefusesABrokenConfig) {
  write_safetensors(folder_ / "model.safetensors", {});
  write_whole(folder_ / "config.json", "{");
  expect_refused({file("config.json"), "not valid JSON"});
  write_whole(folder_ / "config.json", "{}");
  expect_refused({file("config.json"), "model_type"});
}

TEST_F(CheckpointTest, RefusesBrokenWeights) {
  write_whole(folder_ / "model.safetensors", "x");
  expect_refused({file("model.safetensors"), "too short"});
}

TEST_F(CheckpointTest, RefusesAMissingShard) {
  write_shards();
  write_index({{"a", "one.safetensors"}, {"d", "three.safetensors"}});
  expect_refused({file("model.safetensors.index.json"), "shard three.safetensors is missing"});
  write_index({{"a", std::string(300, 'x')}});  // longer than a file name can be
  expect_refused({file("model.safetensors.index.json"), "is missing"});
}

TEST_F(CheckpointTest, RefusesAShardWithoutItsTensor) {
  write_shards();
  write_index({{"a", "one.safetensors"}, {"b", "one.safetensors"}});
  expect_refused({file("model.safetensors.index.json"), "b: not in one.safetensors"});
}

TEST_F(CheckpointTest, RefusesABrokenShard) {
  write_shards();
  write_whole(folder_ / "two.safetensors", "x");
  write_index({{"a", "one.safetensors"}, {"b", "two.safetensors"}});
  expect_refused({file("two.safetensors"), "too short"});
}

TEST_F(CheckpointTest, RefusesShardsOutsideTheFolder) {
  write_shards();
  const std::string outside = (scratch_.path() / "one.safetensors").string();
  for (const Json& name : {Json("../one.safetensors"), Json(outside), Json("x/../one.safetensors"),
                           Json("./one.safetensors"), Json(".."), Json("."), Json(""), Json(3),
                           Json(nullptr), Json(std::string("one.safetensors\0x", 17))}) {
    SCOPED_TRACE(name.dump());
    write_index({{"a", name}});
    expect_refused({file("model.safetensors.index.json"), "a: expected a file name", name.dump()});
  }
}

TEST_F(CheckpointTest, RefusesABrokenIndex) {
  write_shards();
  for (const char* index : {"{}", "[]", R"({"weight_map": []})", R"({"weight_map": {}})"}) {
    write_whole(folder_ / "model.safetensors.index.json", index);
    expect_refused({file("model.safetensors.index.json"), "weight_map"});
  }
  write_whole(folder_ / "model.safetensors.index.json", "{");
  expect_refused({file("model.safetensors.index.json"), "not valid JSON"});
}

// The name of the token embedding, the one tensor that shows both vocabulary and width.
std::string embedding_name(const std::string& model_type) {
  if (model_type == "gpt2") return "transformer.wte.weight";
  if (model_type == "gpt_neox") return "gpt_neox.embed_in.weight";
  return "model.embed_tokens.weight";
}

TEST(CheckpointFixtures, AgreeWithTheirConfigAndTheirTensors) {
  int folders = 0;
  for (const auto& entry : fs::directory_iterator(test::fixtures())) {
    if (!fs::exists(entry.path() / "config.json")) continue;
    SCOPED_TRACE(entry.path());
    ++folders;
    const Checkpoint checkpoint(entry.path());
    const ModelConfig& config = checkpoint.config();
    const Json& json = checkpoint.config_json();
    const bool gpt2 = config.model_type == "gpt2";
    EXPECT_EQ(config.model_type, json["model_type"].get<std::string>());
    EXPECT_EQ(config.layers, json[gpt2 ? "n_layer" : "num_hidden_layers"]);
    EXPECT_EQ(config.heads, json[gpt2 ? "n_head" : "num_attention_heads"]);
    EXPECT_EQ(config.kv_heads, json.value("num_key_value_heads", config.heads));
    EXPECT_EQ(config.width, json[gpt2 ? "n_embd" : "hidden_size"]);
    EXPECT_EQ(config.head_size, json.value("head_dim", config.width / config.heads));
    EXPECT_EQ(config.mlp_width, gpt2 ? 4 * config.width : json["intermediate_size"].get<int64_t>());
    EXPECT_EQ(config.context, json[gpt2 ? "n_positions" : "max_position_embeddings"]);
    EXPECT_EQ(config.tied_head, json["tie_word_embeddings"].get<bool>());
    EXPECT_EQ(config.tied_head,
              !checkpoint.contains("lm_head.weight") && !checkpoint.contains("embed_out.weight"));
    EXPECT_EQ(config.qk_norm, checkpoint.contains("model.layers.0.self_attn.q_norm.weight"));
    if (!gpt2) {
      const Json& rope = json["rope_parameters"];
      EXPECT_EQ(config.rope.theta, rope["rope_theta"]);
      EXPECT_EQ(static_cast<double>(config.rope.dims),
                static_cast<double>(config.head_size) * rope.value("partial_rotary_factor", 1.0));
      EXPECT_EQ(config.rope.llama3.has_value(), rope["rope_type"] == "llama3");
    }
    EXPECT_NO_THROW(
        checkpoint.tensor(embedding_name(config.model_type), {config.vocabulary, config.width}));
    // q enters the attention kernel as [B, heads, T, head size], k as [B, kv heads, T, head size].
    const Safetensors expected(entry.path() / "expected.safetensors");
    EXPECT_EQ(expected.tensor("q.0").size(1), config.heads);
    EXPECT_EQ(expected.tensor("q.0").size(3), config.head_size);
    EXPECT_TRUE(expected.contains(fmt::format("q.{}", config.layers - 1)));
    EXPECT_FALSE(expected.contains(fmt::format("q.{}", config.layers)));
  }
  EXPECT_EQ(folders, 7);
}

TEST(CheckpointFixtures, TheBuiltInModelOpens) {
  const Checkpoint checkpoint(test::assets() / "wiki-mini");
  EXPECT_EQ(checkpoint.config().model_type, "gpt2");
  EXPECT_EQ(checkpoint.config().end_of_text, 0);
}

}  // namespace
}  // namespace dofla
