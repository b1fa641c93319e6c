#include "bench/gpu/random_gpt2.h"

#include <cstdlib>

#include <fmt/format.h>

#include "bench/gpu/workload.h"
#include "dofla/core/error.h"

namespace dofla::bench {
namespace {

constexpr int64_t kLayers = 12, kWidth = 768, kVocabulary = 50257, kContext = 1024;
constexpr double kDeviation = 0.02;  // of the weights, as GPT-2 starts its training

Json config() {
  return {{"model_type", "gpt2"},
          {"activation_function", "gelu_new"},
          {"n_layer", kLayers},
          {"n_head", 12},
          {"n_embd", kWidth},
          {"n_positions", kContext},
          {"vocab_size", kVocabulary},
          {"layer_norm_epsilon", 1e-5},
          {"eos_token_id", kVocabulary - 1},
          {"tie_word_embeddings", true}};
}

Tensor ones(int64_t size) {
  Tensor out({size});
  std::fill_n(out.data<float>(), size, 1.0f);
  return out;
}

NamedTensors weights() {
  NamedTensors all;
  const auto matrix = [&](const std::string& name, const Shape& shape) {
    all.emplace_back(name + ".weight", random_bf16(shape, kDeviation, all.size()));
  };
  const auto linear = [&](const std::string& name, int64_t inputs, int64_t outputs) {
    matrix(name, {inputs, outputs});
    all.emplace_back(name + ".bias", Tensor::zeros({outputs}));
  };
  const auto norm = [&](const std::string& name) {
    all.emplace_back(name + ".weight", ones(kWidth));
    all.emplace_back(name + ".bias", Tensor::zeros({kWidth}));
  };
  matrix("wte", {kVocabulary, kWidth});
  matrix("wpe", {kContext, kWidth});
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string at = fmt::format("h.{}.", i);
    norm(at + "ln_1");
    linear(at + "attn.c_attn", kWidth, 3 * kWidth);
    linear(at + "attn.c_proj", kWidth, kWidth);
    norm(at + "ln_2");
    linear(at + "mlp.c_fc", kWidth, 4 * kWidth);
    linear(at + "mlp.c_proj", 4 * kWidth, kWidth);
  }
  norm("ln_f");
  return all;
}

// A folder of its own, gone with everything in it at the end of the scope.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_((fs::temp_directory_path() / "dofla-bench-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) fail("{}: cannot be made", path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  fs::path path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

Checkpoint random_gpt2() {
  const TemporaryFolder folder;
  write_whole(folder.path() / "config.json", config().dump());
  write_safetensors(folder.path() / "model.safetensors", weights());
  return Checkpoint(folder.path());
}

}  // namespace dofla::bench
