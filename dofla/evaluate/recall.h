// What a model still knows of what it read: a number asked for by generation, among others or alone
// in a text, and a random sequence read twice. docs/recall.md has the protocol.
#pragma once

#include <string_view>
#include <vector>

#include "dofla/core/progress.h"
#include "dofla/distributed/group.h"
#include "dofla/evaluate/recall_prompts.h"
#include "dofla/model/transformer.h"

namespace dofla {

struct RecallResult {
  int64_t distance = 0;
  int64_t questions = 0;
  int64_t exact = 0;     // answered with the number asked for
  int64_t confused = 0;  // answered with the number of another fact of the prompt
  double chance = 0;     // the share that guessing among the facts of the prompt gets right
};

// A single number in a text.
struct NeedleResult {
  int64_t length = 0;  // tokens of the prompt
  double depth = 0;    // of the text, the share that stands before the number: 0 to 1
  int64_t questions = 0;
  int64_t exact = 0;
  double chance = 0;  // the share that guessing a number gets right
};

struct InductionResult {
  int64_t distance = 0;
  double accuracy = 0;  // the share of the repeated tokens that were the likeliest ones
  double chance = 0;    // the share that guessing a token gets right
};

struct RecallReport {
  std::vector<RecallResult> recall;
  std::vector<NeedleResult> needle;
  std::vector<InductionResult> induction;
};

enum class RecallAnswer { kExact, kConfused, kOther };

// What a continuation of the question says: the digits that it begins with, after spaces.
RecallAnswer judge_answer(std::string_view continuation, const std::vector<Fact>& facts);

// Whether a prompt of this distance with its answer, or a sequence of so many tokens read twice,
// is no longer than the model can take: its context, but for a student with rotary positions and
// states that do not grow (Transformer::most_tokens).
bool recall_fits(const Transformer& model, int64_t distance);
bool induction_fits(const Transformer& model, const Tokenizer& tokenizer, int64_t distance);
// The longest of these distances at which a prompt fits. Throws Error if there is none.
int64_t longest_recall(const Transformer& model, const std::vector<int64_t>& distances);

// Of all three ranks share the prompts or sequences, and all have the result.
RecallResult measure_recall(const Transformer& model, const Tokenizer& tokenizer,
                            const RecallPrompts& prompts, int64_t distance,
                            const Progress& progress = {}, const Group& group = {});
NeedleResult measure_needle(const Transformer& model, const Tokenizer& tokenizer,
                            const RecallPrompts& prompts, int64_t length, double depth,
                            const Progress& progress = {}, const Group& group = {});

// `distance` random tokens twice, after what the tokenizer begins a text with. No special tokens.
TokenIds repeated_tokens(const Tokenizer& tokenizer, int64_t vocabulary, int64_t distance,
                         uint64_t seed, uint64_t stream = 0);

// The likeliest next token against the one that stands there, for the last `distance` tokens of
// every sequence.
InductionResult measure_induction(const Transformer& model, const std::vector<TokenIds>& sequences,
                                  int64_t distance, const Group& group = {});

// All at every distance that fits, recall up to the longest one of the prompts, and needles at
// every depth in prompts as long as those of recall. The tokenizer is the model's. The same prompts
// may be put to several models. All ranks.
RecallReport evaluate_recall(const Transformer& model, const Tokenizer& tokenizer,
                             const RecallPrompts& prompts, const std::vector<int64_t>& distances,
                             const std::vector<double>& depths = {}, const Progress& progress = {},
                             const Group& group = {});

}  // namespace dofla
