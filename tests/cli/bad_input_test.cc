// Models that are not what they claim to be, files that change under the program, input that would
// take forever: one clear line, exit 1.
#include <limits>

#include "dofla/checkpoint/safetensors.h"
#include "tests/support/command_line.h"

namespace dofla {
namespace {

using test::ProcessResult;
using testing::HasSubstr;

class BadInput : public test::CommandLine {
 protected:
  static Json config_of(const fs::path& model) { return load_json(model / "config.json"); }
  static void set_config(const fs::path& model, const Json& config) {
    write_whole(model / "config.json", config.dump());
  }
  // Changes the model's tensors.
  static void rewrite(const fs::path& model, const std::function<void(NamedTensors&)>& change) {
    const fs::path file = model / "model.safetensors";
    NamedTensors tensors;
    {
      const Safetensors before(file);
      for (const std::string& name : before.names())
        tensors.emplace_back(name, before.tensor(name).clone());
    }
    change(tensors);
    write_safetensors(file, tensors);
  }
  std::string ids(int sequences = 1) const {
    Json all = Json::array();
    for (int b = 0; b < sequences; ++b) {
      all.push_back(Json::array());
      for (int t = 0; t < 24; ++t) all.back().push_back((7 * t * (b + 1) + b) % 30);
    }
    return write("ids.json", all.dump());
  }
  // `change` runs while the model is mapped: the program waits for the ids that come through a
  // pipe.
  ProcessResult evaluate_while(const fs::path& model, const std::string& change) const {
    const std::string pipe = (scratch.path() / "ids.pipe").string();
    return test::run_process(
        {"/bin/bash", "-c",
         fmt::format("mkfifo {0}; '{1}' evaluate {2} --ids {0} & exec 3>{0}; {3}; "
                     "echo '[[1, 2, 3]]' >&3; exec 3>&-; wait $!",
                     pipe, DOFLA_BINARY, model.string(), change)});
  }
};

TEST_F(BadInput, WeightsOfAnotherConfigurationAreRefused) {
  const fs::path model = copy_of_model();
  Json config = config_of(model);
  config["n_layer"] = config["n_layer"].get<int>() - 1;
  set_config(model, config);
  const std::string part = "are not part of the gpt2 of";
  expect_failure({"evaluate", model.string(), "--ids", ids()}, 1, part);
  expect_failure({"generate", model.string(), "--ids", ids()}, 1, part);
  expect_failure({"dof", model.string(), "--ids", ids()}, 1, part);
}

TEST_F(BadInput, AStudentWithoutItsBlockIsRefused) {
  const fs::path student = scratch.path() / "student";
  ASSERT_EQ(run({"distill", fixture, "--ids", ids(4), "--out", student.string(), "--steps", "0",
                 "--strategy", "fix", "--held-out", "1"})
                .exit_code,
            0);
  ASSERT_EQ(run({"evaluate", student.string(), "--ids", ids()}).exit_code, 0);
  Json config = config_of(student);
  config.erase("linear_attention");
  set_config(student, config);
  expect_failure({"evaluate", student.string(), "--ids", ids()}, 1,
                 "linear_attention: missing; expected the config.json of a dofla student");
  set_config(student, config["teacher"]);
  expect_failure({"evaluate", student.string(), "--ids", ids()}, 1,
                 "but its config.json has no linear_attention block");
}

TEST_F(BadInput, BuffersOfOlderFilesAreWelcome) {
  const auto loss_with = [&](const char* name, const std::vector<std::string>& extra) {
    const fs::path model = scratch.path() / name;
    fs::copy(test::fixtures() / name, model);
    const Json before = json({"evaluate", model.string(), "--ids", ids()});
    rewrite(model, [&](NamedTensors& tensors) {
      for (const std::string& buffer : extra) tensors.emplace_back(buffer, Tensor::zeros({2, 2}));
    });
    EXPECT_EQ(json({"evaluate", model.string(), "--ids", ids()}), before);
  };
  loss_with("gpt2", {"transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias",
                     "lm_head.weight"});  // its head is tied
  loss_with("gpt_neox",
            {"gpt_neox.layers.0.attention.bias", "gpt_neox.layers.0.attention.masked_bias",
             "gpt_neox.layers.0.attention.rotary_emb.inv_freq"});
  loss_with("llama", {"model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"});
}

TEST_F(BadInput, WeightsThatAreNotFiniteAreNamed) {
  const fs::path model = copy_of_model();
  rewrite(model, [](NamedTensors& tensors) {
    for (auto& [name, tensor] : tensors)
      if (name == "transformer.h.0.mlp.c_fc.weight")
        tensor.data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  });
  const std::string folder = model.string(), out = (scratch.path() / "out").string();
  const std::string part =
      fmt::format("layer 1 of {}: transformer.h.0.mlp.c_fc.weight holds NaN or infinity",
                  config_of(model)["n_layer"].get<int>());
  expect_failure({"evaluate", folder, "--ids", ids()}, 1, part);
  expect_failure({"evaluate", folder, "--teacher", fixture, "--ids", ids()}, 1, part);
  expect_failure({"evaluate", fixture, "--teacher", folder, "--ids", ids()}, 1, part);
  expect_failure({"generate", folder, "--ids", ids(), "--json"}, 1, part);
  expect_failure({"dof", folder, "--ids", ids(), "--samples", "8"}, 1,
                 "layer 2, head 1: a query or key is not finite");
  expect_failure({"distill", folder, "--ids", ids(4), "--held-out", "1", "--out", out}, 1, part);
  expect_failure({"finetune", folder, "--ids", ids(4), "--held-out", "1", "--out", out}, 1, part);
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(BadInput, AnglesThatAreNotFiniteAreNamed) {
  const fs::path model = scratch.path() / "llama";
  fs::copy(test::fixtures() / "llama", model);
  Json config = config_of(model);
  for (const char* block : {"rope_parameters", "rope_scaling"})
    if (config.contains(block) && config[block].is_object()) config[block]["rope_theta"] = 1e-300;
  if (config.contains("rope_theta") || !config.contains("rope_parameters"))
    config["rope_theta"] = 1e-300;
  set_config(model, config);
  const ProcessResult result = run({"evaluate", model.string(), "--ids", ids()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("the loss is not finite; the first place where the model's "
                                    "values are not is layer 1 of"));
  EXPECT_THAT(result.err, HasSubstr(": its values leave the range of float"));
}

TEST_F(BadInput, AFileThatBecomesShorterIsNamed) {
  const fs::path model = copy_of_model();
  const ProcessResult result =
      evaluate_while(model, fmt::format("truncate -s 4096 {}/model.safetensors", model.string()));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("model.safetensors: became shorter while it was in use"));
}

TEST_F(BadInput, AFileThatIsWrittenOverIsNamed) {
  const fs::path model = copy_of_model();
  const ProcessResult result = evaluate_while(
      model, fmt::format("printf x | dd of={}/model.safetensors bs=1 seek=9000 conv=notrunc "
                         "2>/dev/null",
                         model.string()));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("model.safetensors: was written to while it was in use"));
}

TEST_F(BadInput, TokenizersThatWouldTakeForever) {
  const fs::path model = scratch.path() / "model";
  fs::create_directory(model);
  const auto expect_refused = [&](const Json& changes, const std::string& part) {
    Json tokenizer = {
        {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", Json::array()}}}};
    tokenizer.update(changes);
    write_whole(model / "tokenizer.json", tokenizer.dump());
    expect_failure({"tokenize", model.string(), "--text", std::string(8000, 'a')}, 1, part);
  };
  expect_refused({{"pre_tokenizer",
                   {{"type", "Split"},
                    {"pattern", {{"Regex", "(?:a|a){22}[bc]"}}},
                    {"behavior", "Isolated"}}}},
                 "too much work on a text of 8000 bytes");
  const Json longer = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaaaa"}};
  expect_refused(
      {{"normalizer", {{"type", "Sequence"}, {"normalizers", std::vector<Json>(12, longer)}}}},
      "makes more than 129024 bytes of a text");
}

TEST_F(BadInput, PatternsOfRunsAreShort) {
  const std::string suite = write("suite.json", "{}"), out = (scratch.path() / "out").string();
  expect_failure({"reproduce", suite, "--out", out, "--only",
                  std::string(60'000, '(') + std::string(60'000, ')')},
                 2, "a pattern of 120000 characters, more than 1000");
}

}  // namespace
}  // namespace dofla
