// Recall on a GPU against the CPU: the same prompts, the same answers, the same likeliest tokens.
#include "dofla/evaluate/recall.h"

#include "dofla/generate/generate.h"
#include "dofla/linear/linear_model.h"
#include "dofla/pipeline/text.h"
#include "tests/support/model_on_gpu.h"

namespace dofla {
namespace {

class CudaRecall : public test::ModelOnGpu {};

TEST_F(CudaRecall, AsksAndCountsAsOnTheCpu) {
  const Checkpoint checkpoint(wiki_mini);
  const Tokenizer tokenizer = Tokenizer::load(wiki_mini);
  const TokenIds text =
      read_running_text(checkpoint, {.files = {test::assets() / "wikipedia.jsonl.zst"}}, 20 * 160);
  const RecallPrompts prompts(tokenizer, text, 20, 32, 2);
  const Transformer cpu(checkpoint), there(checkpoint, gpu, DType::kF32);
  const RecallReport wanted = evaluate_recall(cpu, tokenizer, prompts, {32}, {0.5, 1}),
                     found = evaluate_recall(there, tokenizer, prompts, {32}, {0.5, 1});
  EXPECT_EQ(found.recall.at(0).exact, wanted.recall.at(0).exact);
  EXPECT_EQ(found.recall.at(0).confused, wanted.recall.at(0).confused);
  ASSERT_EQ(found.needle.size(), 2u);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(found.needle[i].exact, wanted.needle[i].exact);
  // One of the 128 repeated tokens may stand between two that are almost equally likely.
  EXPECT_NEAR(found.induction.at(0).accuracy, wanted.induction.at(0).accuracy, 1.0 / 128);
}

// Prompts of different and of equal lengths, softmax and linear: one sequence takes a single launch
// a token, several are recorded.
TEST_F(CudaRecall, PromptsSideBySideGetWhatTheyGetOnTheCpu) {
  const Checkpoint checkpoint(wiki_mini);
  const Transformer cpu(checkpoint), there(checkpoint, gpu, DType::kF32);
  const FeatureSet features = pair_features(cpu, some_ids(cpu.config(), 1, 64), 16);
  const Transformer linear = make_linear_model(checkpoint, features);
  const Transformer linear_there = make_linear_model(checkpoint, features, gpu, DType::kF32);
  const TokenIds text = Tokenizer::load(wiki_mini).encode(
      "The town lies on the river. It has a church of the twelfth century and a school.");
  const std::vector<TokenIds> prompts = {text,
                                         {text.begin(), text.begin() + 5},
                                         {text[0]},
                                         {text.begin() + 3, text.begin() + 8},
                                         {text.rbegin(), text.rend()}};
  EXPECT_EQ(generate_greedily(there, prompts, 6), generate_greedily(cpu, prompts, 6));
  EXPECT_EQ(generate_greedily(linear_there, prompts, 6), generate_greedily(linear, prompts, 6));
}

}  // namespace
}  // namespace dofla
