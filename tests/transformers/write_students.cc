// Writes students of every fixture model and of a trained one with what dofla computes for them, to
// be compared with the Python files in their folders (decoder_test.py, check_students.py); or
// compares with folders that Transformers has saved.
#include <iostream>

#include "dofla/checkpoint/tokenizer.h"
#include "dofla/generate/generate.h"
#include "dofla/linear/linear_model.h"
#include "dofla/model/next_token_gradient.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

struct Kind {
  const char* name;
  FeatureSet (*features)(const ModelConfig& config);
  Coordinates coordinates;
};

// Heads of different M throughout: ragged_features() and its like.
const Kind kKinds[] = {
    {"linear",
     [](const auto& config) { return test::ragged_features(config, FeatureMap::kUntied); },
     Coordinates::kBalanced},
    {"kept", [](const auto& config) { return test::mixed_features(config, FeatureMap::kPrf); },
     Coordinates::kCentred},
    {"attended",
     [](const auto& config) { return test::hybrid_features(config, FeatureMap::kUntied); },
     Coordinates::kBalanced},
    {"recent",
     [](const auto& config) {
       return test::hybrid_features(config, FeatureMap::kPrf, KeyPolicy::kRecent);
     },
     Coordinates::kRaw},
    {"dijiang",
     [](const auto& config) { return test::ragged_features(config, FeatureMap::kDijiang); },
     Coordinates::kRaw},
};

constexpr int64_t kBatch = 2, kTokens = 48, kPrompt = 19, kMore = 24;

Tensor logits_of(const Transformer& model, const Tensor& ids) {
  const Tensor rows = model.forward(ids).reshape({ids.count(), model.config().width});
  return model.logits(rows).reshape({ids.size(0), ids.size(1), model.config().vocabulary});
}

// ids and logits; the tokens that follow the first of them, likeliest first; the gradients of the
// next-token loss.
NamedTensors expected_of(const Checkpoint& student) {
  Transformer model = load_model(student);
  const Tensor ids = test::some_ids(model.config(), kBatch, kTokens);
  NamedTensors out = {{"ids", ids}, {"logits", logits_of(model, ids)}};
  std::vector<TokenIds> prompts;
  for (int64_t b = 0; b < kBatch; ++b) {
    const auto row = test::as_vector(ids.slice(b, b + 1));
    prompts.emplace_back(row.begin(), row.begin() + kPrompt);
  }
  Tensor greedy({kBatch, kMore}, DType::kI64);
  int64_t* to = greedy.data<int64_t>();
  for (const TokenIds& row : generate_greedily(model, prompts, kMore))
    for (const auto id : row) *to++ = id;
  out.emplace_back("greedy", greedy);
  model.make_trainable();
  Gradients gradients = new_gradients(model, {.weights = true, .features = true});
  Tensor loss({1});
  *loss.data<float>() = static_cast<float>(next_token_gradient(model, ids, false, gradients));
  out.emplace_back("loss", loss);
  // All of them would be as large as the model: those of the features, and of what is small.
  for (const auto& [name, gradient] : parameters(gradients))
    if (name.starts_with("linear_attention") || gradient.shape().size() == 1)
      out.emplace_back("gradient." + name, gradient);
  if (fs::exists(student.folder() / "tokenizer.json")) {
    const std::vector<int64_t> text =
        Tokenizer::load(student.folder()).encode("Once upon a time, a cat sat down.");
    Tensor encoded({static_cast<int64_t>(text.size())}, DType::kI64);
    std::copy(text.begin(), text.end(), encoded.data<int64_t>());
    out.emplace_back("encoded", encoded);
  }
  return out;
}

// All families with random weights, and a small model that was trained, with a tokenizer.
std::vector<fs::path> teachers() {
  std::vector<fs::path> folders = {fs::path(DOFLA_SOURCE_DIR) / "tests/models/stories260K"};
  for (const std::string& family : test::fixture_models())
    folders.push_back(test::fixtures() / family);
  return folders;
}

void write_all(const fs::path& to) {
  for (const fs::path& from : teachers()) {
    const Checkpoint teacher(from);
    const ModelConfig& config = teacher.config();
    std::vector<std::vector<int64_t>> rows = {test::as_vector(test::some_ids(config, 1, 64))};
    for (const Kind& kind : kKinds) {
      FeatureSet features = kind.features(config);
      features.coordinates = measure_coordinates(Transformer(teacher), rows, kind.coordinates);
      const fs::path folder = to / (from.filename().string() + "-" + kind.name);
      fs::create_directories(folder);
      write_linear_model(folder, teacher, features, {{"made by", "write_students"}});
      write_safetensors(folder / "expected.safetensors", expected_of(Checkpoint(folder)));
    }
  }
}

// The largest difference between the logits of saved students and those of the originals.
int compare(const fs::path& originals, const fs::path& saved) {
  int wrong = 0, seen = 0;
  for (const auto& entry : fs::directory_iterator(saved)) {
    const Transformer model = load_model(Checkpoint(entry.path()));
    const Safetensors expected(originals / entry.path().filename() / "expected.safetensors");
    const Tensor logits = logits_of(model, expected.tensor("ids"));
    const bool same = test::same_bits(logits, expected.tensor("logits").clone());
    std::cout << entry.path().filename().string() << (same ? ": the same\n" : ": other logits\n");
    wrong += same ? 0 : 1;
    ++seen;
  }
  return wrong == 0 && seen > 0 ? 0 : 1;
}

}  // namespace
}  // namespace dofla

int main(int argc, char** argv) {
  if (argc == 2) {
    dofla::write_all(argv[1]);
    return 0;
  }
  if (argc == 3) return dofla::compare(argv[1], argv[2]);
  std::cerr << "usage: write_students FOLDER | write_students FOLDER SAVED_BY_TRANSFORMERS\n";
  return 2;
}
