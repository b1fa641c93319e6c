// Questions with lettered options, asked in every rotation of the options, so that a liking for a
// letter is no knowledge. docs/tasks.md has the protocol.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "dofla/checkpoint/tokenizer.h"
#include "dofla/core/names.h"
#include "dofla/core/progress.h"
#include "dofla/data/tasks/task.h"
#include "dofla/data/tasks/task_result.h"
#include "dofla/distributed/group.h"
#include "dofla/model/transformer.h"

namespace dofla {

enum class AnswerBy {
  kLikelihood,  // the likeliest letter
  kGeneration,  // the letter that the model writes
};

template <>
struct Names<AnswerBy> {
  static constexpr std::string_view kWhat = "way to answer";
  static constexpr std::array kAll = {Name{AnswerBy::kLikelihood, "likelihood"},
                                      Name{AnswerBy::kGeneration, "generated"}};
};

struct LetteredResult {
  int64_t questions = 0;
  int64_t asked = 0;           // every question once a rotation
  int64_t unanswered = 0;      // of those asked: no letter of an option, or no finite score; wrong
  int64_t truncated = 0;       // of those asked: cut on the left to fit the model's context
  double chance = 0;           // what guessing gets right
  Accuracy acc = {};           // mean over all rotations; the standard error is one over questions
  Accuracy as_published = {};  // with the options in the order of the file
  double same_option = 0;  // share of questions with the same option as answer in every rotation
};

// The option that an answer names: its first word, after spaces and punctuation, is the capital
// letter of one of so many options and nothing more.
std::optional<size_t> letter_in(std::string_view answer, size_t options);

// What letters were answered to a question, by rotation: as many as it has options.
using Letters = std::vector<std::optional<size_t>>;
// Without `truncated`, which letters do not tell.
LetteredResult count_letters(const std::vector<Question>& questions,
                             const std::vector<Letters>& letters);

// Throws Error, naming what to do, if a question has no options to put behind letters. All ranks.
LetteredResult evaluate_letters(const Transformer& model, const Tokenizer& tokenizer,
                                const std::vector<Question>& questions, AnswerBy by,
                                const Progress& progress = {}, const Group& group = {});

}  // namespace dofla
