// Recall, words, answers and agreement as JSON: the fields of the structs under their names, an
// accuracy as its mean and, with "_stderr", its standard error.
#pragma once

#include "dofla/core/json.h"
#include "dofla/data/tasks/task_result.h"
#include "dofla/evaluate/agreement.h"
#include "dofla/evaluate/answers.h"
#include "dofla/evaluate/last_words.h"
#include "dofla/evaluate/recall.h"

namespace dofla {

// {"questions", "acc", "acc_stderr", "acc_norm", "acc_norm_stderr", "truncated", "not_finite"}
OrderedJson to_json(const TaskResult& result);
// {"words", "acc", "acc_stderr", "loss", "perplexity", "truncated"}
OrderedJson to_json(const LastWords& result);
// {"questions", "asked", "unanswered", "acc", "acc_stderr", "as_published", "as_published_stderr",
//  "same_option", "chance", "truncated"}
OrderedJson to_json(const LetteredResult& result);
// {"prompts", "tokens", "median", "mean", "equal"}
OrderedJson to_json(const Agreement& result);

OrderedJson to_json(const RecallResult& result);     // {"distance", "questions", "exact", …}
OrderedJson to_json(const NeedleResult& result);     // {"length", "depth", "questions", …}
OrderedJson to_json(const InductionResult& result);  // {"distance", "accuracy", "chance"}
OrderedJson to_json(
    const RecallReport& report);  // {"recall": […], "needle": […], "induction": […]}

}  // namespace dofla
