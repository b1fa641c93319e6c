#include "dofla/evaluate/answers_json.h"

namespace dofla {
namespace {

template <class Result>
OrderedJson array_of(const std::vector<Result>& results) {
  OrderedJson array = OrderedJson::array();
  for (const Result& result : results) array.push_back(to_json(result));
  return array;
}

}  // namespace

OrderedJson to_json(const TaskResult& result) {
  return {{"questions", result.questions},
          {"acc", result.acc.mean},
          {"acc_stderr", result.acc.standard_error},
          {"acc_norm", result.acc_norm.mean},
          {"acc_norm_stderr", result.acc_norm.standard_error},
          {"truncated", result.truncated},
          {"not_finite", result.not_finite}};
}

OrderedJson to_json(const LastWords& result) {
  return {{"words", result.words},
          {"acc", result.acc.mean},
          {"acc_stderr", result.acc.standard_error},
          {"loss", result.loss},
          {"perplexity", result.perplexity},
          {"truncated", result.truncated}};
}

OrderedJson to_json(const LetteredResult& result) {
  return {{"questions", result.questions},
          {"asked", result.asked},
          {"unanswered", result.unanswered},
          {"acc", result.acc.mean},
          {"acc_stderr", result.acc.standard_error},
          {"as_published", result.as_published.mean},
          {"as_published_stderr", result.as_published.standard_error},
          {"same_option", result.same_option},
          {"chance", result.chance},
          {"truncated", result.truncated}};
}

OrderedJson to_json(const Agreement& result) {
  return {{"prompts", result.prompts},
          {"tokens", result.tokens},
          {"median", result.median},
          {"mean", result.mean},
          {"equal", result.equal}};
}

OrderedJson to_json(const RecallResult& result) {
  return {{"distance", result.distance},
          {"questions", result.questions},
          {"exact", result.exact},
          {"confused", result.confused},
          {"chance", result.chance}};
}

OrderedJson to_json(const NeedleResult& result) {
  return {{"length", result.length},
          {"depth", result.depth},
          {"questions", result.questions},
          {"exact", result.exact},
          {"chance", result.chance}};
}

OrderedJson to_json(const InductionResult& result) {
  return {{"distance", result.distance}, {"accuracy", result.accuracy}, {"chance", result.chance}};
}

OrderedJson to_json(const RecallReport& report) {
  return {{"recall", array_of(report.recall)},
          {"needle", array_of(report.needle)},
          {"induction", array_of(report.induction)}};
}

}  // namespace dofla
