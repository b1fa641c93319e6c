#include "dofla/fidelity/verdict.h"

#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

namespace dofla {

Grade grade_of(const Divergence& divergence) {
  const double error = std::isnan(divergence.kl_stderr) ? 0 : divergence.kl_stderr;
  for (const TextThreshold& threshold : kTextThresholds)
    if (divergence.kl + 2 * error <= threshold.kl && divergence.kl_99 <= threshold.kl_99 &&
        divergence.same_top >= threshold.same_top)
      return threshold.grade;
  return Grade::kFar;
}

std::optional<Grade> grade_of_kept(double student, double teacher, double teacher_stderr,
                                   double chance) {
  const double least = std::max(kLeastAboveChance, kLeastErrorsAboveChance * teacher_stderr);
  if (!(teacher - chance >= least)) return std::nullopt;
  const double kept = (student - chance) / (teacher - chance);
  for (const KeptThreshold& threshold : kKeptThresholds)
    if (kept >= threshold.kept) return threshold.grade;
  return Grade::kFar;
}

std::string_view in_words(Grade grade) {
  switch (grade) {
    case Grade::kEqual:
      return "can replace its teacher";
    case Grade::kClose:
      return "can replace its teacher where small differences do not matter";
    case Grade::kApart:
      return "differs noticeably from its teacher";
    case Grade::kFar:
      return "is another model than its teacher";
  }
  return "";
}

Finding text_finding(const std::string& name, bool in_domain, const Divergence& divergence) {
  return {.grade = grade_of(divergence),
          .about = name,
          .words = fmt::format(
              "{:+.3f} nats a token, KL {:.3f}, {:.1f} % of the likeliest tokens the same{}{}",
              divergence.added(), divergence.kl, 100 * divergence.same_top,
              in_domain ? " (in domain)" : "",
              // Nothing says then how far the mean may be off, and the grade is of the mean alone.
              std::isnan(divergence.kl_stderr) ? ", in a single window" : "")};
}

Verdict make_verdict(std::vector<Finding> findings) {
  Verdict verdict;
  verdict.grade = Grade::kEqual;
  std::vector<std::string> parts;
  size_t graded = 0;
  for (const Finding& finding : findings) {
    graded += finding.grade ? 1 : 0;
    if (finding.grade) verdict.grade = std::max(verdict.grade, *finding.grade);
  }
  for (const auto& [grade, grade_name] : Names<Grade>::kAll) {
    std::vector<std::string> where;
    for (const Finding& finding : findings)
      if (finding.grade == grade) where.push_back(finding.about);
    if (where.empty()) continue;
    parts.push_back(where.size() == graded && graded > 1
                        ? fmt::format("{} on all that was measured", in_words(grade))
                        : fmt::format("{} on {}", in_words(grade), fmt::join(where, ", ")));
  }
  verdict.headline = fmt::format("{}", fmt::join(parts, "; "));
  if (graded == 0) verdict.grade = Grade::kFar;
  verdict.findings = std::move(findings);
  return verdict;
}

}  // namespace dofla
