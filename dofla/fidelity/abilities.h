// What a model still finds in its prompt, says and answers, by generation as well as by likelihood:
// the same questions for teacher and students.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dofla/evaluate/agreement.h"
#include "dofla/evaluate/answers.h"
#include "dofla/evaluate/last_words.h"
#include "dofla/evaluate/recall.h"
#include "dofla/fidelity/verdict.h"

namespace dofla {

struct TaskQuestions {
  std::string task;
  std::vector<Question> questions;
};

// What is asked. What is empty is left out.
struct AbilityQuestions {
  std::optional<RecallPrompts> recall = {};
  std::vector<int64_t> distances = {};
  std::vector<double> depths = {};
  std::vector<Question> last_words = {};
  std::vector<TaskQuestions> tasks = {};
  std::vector<TokenIds> prompts = {};  // that are gone on with greedily
  int64_t continuation = 0;            // by so many tokens
};

struct TaskAbility {
  std::string task;
  double chance = 0;
  TaskResult result = {};  // by the likelihood of the answers
  // Where the options can stand behind letters, in every rotation.
  std::optional<LetteredResult> by_letter = {}, generated = {};
};

struct Abilities {
  RecallReport recall = {};
  std::optional<LastWords> last_words = {};
  std::vector<TaskAbility> tasks = {};
  std::vector<TokenIds> continuations = {};
};

// All ranks.
Abilities measure_abilities(const Transformer& model, const Tokenizer& tokenizer,
                            const AbilityQuestions& questions, const Progress& progress = {},
                            const Group& group = {});

// What a student's abilities say beside its teacher's.
std::vector<Finding> ability_findings(const Abilities& student, const Abilities& teacher);

}  // namespace dofla
