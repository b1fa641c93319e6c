#include "dofla/evaluate/recall.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "dofla/core/error.h"
#include "dofla/core/random.h"
#include "dofla/distributed/agreement.h"
#include "dofla/evaluate/likeliest.h"
#include "dofla/generate/generate.h"
#include "dofla/model/finite.h"

namespace dofla {
namespace {

// A space, four digits, each a token of its own, and one that shows that the number has ended.
constexpr int64_t kAnswerTokens = 6;
constexpr uint64_t kRandomSequences = 4;  // that are read twice, at each distance

std::vector<RecallAnswer> ask(const Transformer& model, const Tokenizer& tokenizer,
                              const std::vector<RecallQuestion>& questions,
                              const Progress& progress, const Group& group) {
  std::vector<TokenIds> prompts;
  prompts.reserve(questions.size());
  for (const RecallQuestion& question : questions) prompts.push_back(question.prompt);
  const std::vector<TokenIds> drawn =
      generate_greedily(model, prompts, kAnswerTokens, progress, group);
  std::vector<RecallAnswer> answers;
  answers.reserve(questions.size());
  for (size_t i = 0; i < questions.size(); ++i)
    answers.push_back(judge_answer(tokenizer.decode(drawn[i]), questions[i].facts));
  return answers;
}

}  // namespace

RecallAnswer judge_answer(std::string_view continuation, const std::vector<Fact>& facts) {
  constexpr std::string_view kDigits = "0123456789";
  require(!facts.empty(), "recall: an answer without a fact");
  continuation.remove_prefix(std::min(continuation.find_first_not_of(' '), continuation.size()));
  const std::string_view number = continuation.substr(0, continuation.find_first_not_of(kDigits));
  if (number == facts[0].number) return RecallAnswer::kExact;
  const auto has_it = [&](const Fact& fact) { return fact.number == number; };
  return std::ranges::any_of(facts, has_it) ? RecallAnswer::kConfused : RecallAnswer::kOther;
}

// The last token of an answer, as the last one of a repeated sequence, need not be read.
bool recall_fits(const Transformer& model, int64_t distance) {
  return RecallPrompts::tokens(distance) + kAnswerTokens - 1 <= model.most_tokens();
}

bool induction_fits(const Transformer& model, const Tokenizer& tokenizer, int64_t distance) {
  return std::ssize(beginning_of_text(tokenizer)) + 2 * distance - 1 <= model.most_tokens();
}

int64_t longest_recall(const Transformer& model, const std::vector<int64_t>& distances) {
  int64_t longest = 0;
  for (const int64_t distance : distances)
    if (recall_fits(model, distance)) longest = std::max(longest, distance);
  const int64_t possible = model.most_tokens() + 1 - kAnswerTokens - RecallPrompts::kRest;
  if (longest == 0 && possible > 0)
    fail("no distance fits the model's context of {} tokens, where {}: the longest that does is {}",
         model.most_tokens(),
         model.weights().position_embedding.defined() ? "its learnt positions end"
                                                      : "the cache of its softmax attention ends",
         possible);
  if (longest == 0)
    fail(
        "the model's context of {} tokens is too short to ask for anything: that takes {} at least",
        model.most_tokens(), RecallPrompts::kRest + kAnswerTokens);
  return longest;
}

RecallResult measure_recall(const Transformer& model, const Tokenizer& tokenizer,
                            const RecallPrompts& prompts, int64_t distance,
                            const Progress& progress, const Group& group) {
  std::vector<RecallQuestion> questions;
  for (int64_t i = 0; i < prompts.questions(); ++i)
    questions.push_back(prompts.question(i, distance));
  RecallResult result = {.distance = distance,
                         .questions = prompts.questions(),
                         .chance = 1.0 / RecallPrompts::kFacts};
  for (const RecallAnswer answer : ask(model, tokenizer, questions, progress, group)) {
    result.exact += answer == RecallAnswer::kExact;
    result.confused += answer == RecallAnswer::kConfused;
  }
  return result;
}

NeedleResult measure_needle(const Transformer& model, const Tokenizer& tokenizer,
                            const RecallPrompts& prompts, int64_t length, double depth,
                            const Progress& progress, const Group& group) {
  std::vector<RecallQuestion> questions;
  for (int64_t i = 0; i < prompts.questions(); ++i)
    questions.push_back(prompts.needle(i, length, depth));
  NeedleResult result = {.length = length,
                         .depth = depth,
                         .questions = prompts.questions(),
                         .chance = 1.0 / RecallPrompts::kNumbers};
  for (const RecallAnswer answer : ask(model, tokenizer, questions, progress, group))
    result.exact += answer == RecallAnswer::kExact;
  return result;
}

TokenIds repeated_tokens(const Tokenizer& tokenizer, int64_t vocabulary, int64_t distance,
                         uint64_t seed, uint64_t stream) {
  const auto ids = static_cast<uint64_t>(std::min(vocabulary, tokenizer.vocabulary()));
  Random random(seed, stream);
  TokenIds once;
  while (std::ssize(once) < distance) {
    const auto id = static_cast<int64_t>(random.below(ids));
    if (tokenizer.token(id) && !tokenizer.is_special(id)) once.push_back(id);
  }
  TokenIds all = beginning_of_text(tokenizer);
  for (int times = 0; times < 2; ++times) all.insert(all.end(), once.begin(), once.end());
  return all;
}

InductionResult measure_induction(const Transformer& model, const std::vector<TokenIds>& sequences,
                                  int64_t distance, const Group& group) {
  require(!sequences.empty() && distance > 0, "induction: nothing to predict");
  const Share own = group.share(std::ssize(sequences));
  double right = 0;
  together<NotFinite>(group, [&] {
    for (int64_t i = own.begin; i < own.end; ++i) {
      const TokenIds& sequence = sequences[static_cast<size_t>(i)];
      require(std::ssize(sequence) > distance, "induction: a sequence of {} tokens for {}",
              sequence.size(), distance);
      const Tensor ids = to_tensor({sequence.begin(), sequence.end() - 1});
      const int64_t tokens = ids.size(1);
      const Tensor hidden = model.forward(ids).reshape({tokens, model.config().width});
      const TokenIds likeliest =
          likeliest_tokens(model, hidden.slice(tokens - distance, tokens), ids);
      right += std::inner_product(likeliest.begin(), likeliest.end(), sequence.end() - distance,
                                  0.0, std::plus<>(), std::equal_to<>());
    }
  });
  group.sum(std::span(&right, 1));
  const int64_t predicted = std::ssize(sequences) * distance;
  return {.distance = distance,
          .accuracy = right / static_cast<double>(predicted),
          .chance = 1 / static_cast<double>(model.config().vocabulary)};
}

RecallReport evaluate_recall(const Transformer& model, const Tokenizer& tokenizer,
                             const RecallPrompts& prompts, const std::vector<int64_t>& distances,
                             const std::vector<double>& depths, const Progress& progress,
                             const Group& group) {
  RecallReport result;
  for (const int64_t distance : distances) {
    if (distance <= prompts.longest_distance() && recall_fits(model, distance)) {
      result.recall.push_back(measure_recall(model, tokenizer, prompts, distance, progress, group));
      for (const double depth : depths)
        result.needle.push_back(measure_needle(
            model, tokenizer, prompts, RecallPrompts::tokens(distance), depth, progress, group));
    }
    if (!induction_fits(model, tokenizer, distance)) continue;
    std::vector<TokenIds> sequences;
    for (uint64_t i = 0; i < kRandomSequences; ++i)
      sequences.push_back(
          repeated_tokens(tokenizer, model.config().vocabulary, distance, prompts.seed(), i));
    result.induction.push_back(measure_induction(model, sequences, distance, group));
  }
  return result;
}

}  // namespace dofla
