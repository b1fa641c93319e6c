#include "dofla/evaluate/agreement.h"

#include <algorithm>

#include "dofla/core/error.h"

namespace dofla {

std::vector<TokenIds> prompts_from(const TokenIds& text, int64_t prompts, int64_t tokens) {
  require(prompts > 0 && tokens > 0, "{} prompts of {} tokens", prompts, tokens);
  if (std::ssize(text) / tokens < prompts)
    fail(
        "the text has {} tokens, enough for {} prompts of {} tokens, not for {}: take fewer or "
        "give a longer text",
        text.size(), std::ssize(text) / tokens, tokens, prompts);
  std::vector<TokenIds> all;
  for (int64_t i = 0; i < prompts; ++i)
    all.emplace_back(text.begin() + i * tokens, text.begin() + (i + 1) * tokens);
  return all;
}

Agreement agreement(const std::vector<TokenIds>& teacher, const std::vector<TokenIds>& student) {
  require(!teacher.empty() && teacher.size() == student.size(),
          "agreement: {} continuations beside {}", student.size(), teacher.size());
  const size_t tokens = teacher[0].size();
  std::vector<double> until;  // the first difference, prompt by prompt
  Agreement result = {.prompts = std::ssize(teacher), .tokens = std::ssize(teacher[0])};
  for (size_t i = 0; i < teacher.size(); ++i) {
    require(tokens > 0 && teacher[i].size() == tokens && student[i].size() == tokens,
            "agreement: continuations of {} and {} tokens, expected {}", teacher[i].size(),
            student[i].size(), tokens);
    const auto first = std::ranges::mismatch(teacher[i], student[i]).in1;
    until.push_back(static_cast<double>(first - teacher[i].begin()));
    result.mean += until.back();
    result.equal += first == teacher[i].end() ? 1 : 0;
  }
  const auto count = static_cast<double>(until.size());
  result.mean /= count;
  result.equal /= count;
  std::ranges::sort(until);
  result.median = (until[(until.size() - 1) / 2] + until[until.size() / 2]) / 2;
  return result;
}

}  // namespace dofla
