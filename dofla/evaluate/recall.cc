#include "dofla/evaluate/recall.h"

#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/core/random.h"
#include "dofla/generate/generate.h"
#include "dofla/model/finite.h"
#include "dofla/ops/sampling.h"

namespace dofla {
namespace {

// A space, four digits, each a token of its own, and one that shows that the number has ended.
constexpr int64_t kAnswerTokens = 6;
constexpr int64_t kSideBySide = 16;       // prompts continued at a time
constexpr uint64_t kRandomSequences = 4;  // that are read twice, at each distance
constexpr int64_t kInductionRows = 64;    // logits of so many tokens exist at a time

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
    fail("no distance fits the model's context of {} tokens: the longest that does is {}",
         model.most_tokens(), possible);
  if (longest == 0)
    fail(
        "the model's context of {} tokens is too short to ask for anything: that takes {} at least",
        model.most_tokens(), RecallPrompts::kRest + kAnswerTokens);
  return longest;
}

RecallResult measure_recall(const Transformer& model, const Tokenizer& tokenizer,
                            const RecallPrompts& prompts, int64_t distance,
                            const Progress& progress) {
  RecallResult result = {.distance = distance, .chance = 1.0 / RecallPrompts::kFacts};
  while (result.questions < prompts.questions()) {
    const int64_t end = std::min(result.questions + kSideBySide, prompts.questions());
    std::vector<RecallQuestion> questions;
    std::vector<TokenIds> batch;
    for (int64_t i = result.questions; i < end; ++i) {
      questions.push_back(prompts.question(i, distance));
      batch.push_back(questions.back().prompt);
    }
    const std::vector<TokenIds> answers = generate_greedily(model, batch, kAnswerTokens);
    for (size_t i = 0; i < questions.size(); ++i) {
      const std::vector<Fact>& facts = questions[i].facts;
      const RecallAnswer answer = judge_answer(tokenizer.decode(answers[i]), facts);
      result.exact += answer == RecallAnswer::kExact;
      result.confused += answer == RecallAnswer::kConfused;
    }
    result.questions = end;
    report(progress, {"recall", result.questions, prompts.questions(), "questions"});
  }
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
                                  int64_t distance) {
  require(!sequences.empty() && distance > 0, "induction: nothing to predict");
  int64_t right = 0;
  for (const TokenIds& sequence : sequences) {
    require(std::ssize(sequence) > distance, "induction: a sequence of {} tokens for {}",
            sequence.size(), distance);
    const Tensor ids = to_tensor({sequence.begin(), sequence.end() - 1});
    const int64_t tokens = ids.size(1);
    const Tensor hidden = model.forward(ids).reshape({tokens, model.config().width});
    for (int64_t begin = tokens - distance; begin < tokens; begin += kInductionRows) {
      const int64_t end = std::min(begin + kInductionRows, tokens);
      const Tensor logits = model.logits(hidden.slice(begin, end)).to(Device());
      if (!all_finite(logits)) fail_not_finite(model, ids, "the next token's distribution");
      const auto vocabulary = static_cast<size_t>(logits.size(1));
      for (int64_t row = begin; row < end; ++row) {
        const float* at = logits.data<float>() + (row - begin) * logits.size(1);
        const auto likeliest = static_cast<int64_t>(likeliest_token({at, vocabulary}));
        right += likeliest == sequence[static_cast<size_t>(row) + 1];
      }
    }
  }
  const int64_t predicted = std::ssize(sequences) * distance;
  return {distance, static_cast<double>(right) / static_cast<double>(predicted)};
}

RecallReport evaluate_recall(const Transformer& model, const Tokenizer& tokenizer,
                             const RecallPrompts& prompts, const std::vector<int64_t>& distances,
                             const Progress& progress) {
  RecallReport result;
  for (const int64_t distance : distances) {
    if (distance <= prompts.longest_distance() && recall_fits(model, distance))
      result.recall.push_back(measure_recall(model, tokenizer, prompts, distance, progress));
    if (!induction_fits(model, tokenizer, distance)) continue;
    std::vector<TokenIds> sequences;
    for (uint64_t i = 0; i < kRandomSequences; ++i)
      sequences.push_back(
          repeated_tokens(tokenizer, model.config().vocabulary, distance, prompts.seed(), i));
    result.induction.push_back(measure_induction(model, sequences, distance));
  }
  return result;
}

}  // namespace dofla
