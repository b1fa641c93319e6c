#include <algorithm>

#include <fmt/ranges.h>

#include "dofla/core/bytes.h"
#include "dofla/fidelity/fidelity.h"

namespace dofla {
namespace {

Finding memory_finding(const Cost& cost, const ModelConfig& teacher) {
  Finding finding = {.grade = {}, .about = "memory", .words = {}};
  finding.words =
      cost.grows ? fmt::format("{} at {}k tokens, and grows with the sequence",
                               with_bytes_unit(cost.bytes[1]), kCostLengths[1] / 1000)
                 : fmt::format(
                       "{} whatever the length; its teacher's cache is larger from {} tokens on",
                       with_bytes_unit(cost.context_bytes), tokens_in(teacher, cost.context_bytes));
  return finding;
}

// Between which of the yardsticks it stands: what everybody knows the distance of.
Finding yardstick_finding(double kl, const std::vector<Yardstick>& yardsticks) {
  Finding finding = {.grade = {}, .about = "yardstick", .words = {}};
  const auto further =
      std::ranges::find_if(yardsticks, [&](const Yardstick& one) { return one.all.kl >= kl; });
  if (further == yardsticks.begin()) {
    finding.words = fmt::format("closer to its teacher than weights rounded to {} (KL {:.4f})",
                                further->name, further->all.kl);
  } else if (further == yardsticks.end()) {
    const Yardstick& last = yardsticks.back();
    finding.words =
        fmt::format("{:.1f} times as far from its teacher as weights rounded to {} (KL {:.4f})",
                    kl / last.all.kl, last.name, last.all.kl);
  } else {
    const Yardstick& closer = *(further - 1);
    finding.words = fmt::format(
        "as far from its teacher as weights rounded to between {} (KL {:.4f}) and {} (KL {:.4f})",
        closer.name, closer.all.kl, further->name, further->all.kl);
  }
  return finding;
}

// Softmax models among the students, such as the teacher through the same training: between one of
// these and a student lies what the other attention costs.
void add_softmax_findings(const StudentFidelity& student, const FidelityReport& report,
                          std::vector<Finding>& findings) {
  if (student.is_softmax()) {
    findings.push_back({.grade = {},
                        .about = "a control",
                        .words = "softmax attention in all layers, as its teacher has it"});
    return;
  }
  for (const StudentFidelity& other : report.students)
    if (other.is_softmax())
      findings.push_back(
          {.grade = {},
           .about = "beside softmax attention",
           .words = fmt::format("{:+.3f} nats a token, KL {:.3f}; {} has {:+.3f}, KL {:.3f}",
                                student.all.added(), student.all.kl, other.name, other.all.added(),
                                other.all.kl)});
}

// What is said of the controls, once for all texts that it is said of.
void add_control_findings(const StudentFidelity& student, std::vector<Finding>& findings) {
  std::vector<std::pair<std::string, std::vector<std::string>>> said;  // a note, and of which texts
  for (const TextFidelity& text : student.texts)
    for (const std::string& note : notes(text.controls.controls, text.controls.student_loss)) {
      const auto found =
          std::ranges::find_if(said, [&](const auto& one) { return one.first == note; });
      if (found == said.end())
        said.push_back({note, {text.name}});
      else
        found->second.push_back(text.name);
    }
  for (const auto& [note, texts] : said)
    findings.push_back({.grade = {},
                        .about = "controls",
                        .words = fmt::format("{} (on {})", note, fmt::join(texts, ", "))});
}

}  // namespace

Verdict verdict_of(const StudentFidelity& student, const FidelityReport& report,
                   const ModelConfig& teacher) {
  std::vector<Finding> findings;
  for (const TextFidelity& text : student.texts)
    findings.push_back(text_finding(text.name, text.in_domain, text.divergence));
  std::ranges::copy(ability_findings(student.abilities, report.teacher_abilities),
                    std::back_inserter(findings));
  if (!report.yardsticks.empty())
    findings.push_back(yardstick_finding(student.all.kl, report.yardsticks));
  add_softmax_findings(student, report, findings);
  add_control_findings(student, findings);
  for (const TextFidelity& text : student.texts)
    if (text.trained_on)
      findings.push_back({.grade = {},
                          .about = text.name,
                          .words = "the student was trained on this file: its numbers flatter"});
  findings.push_back(memory_finding(student.cost, teacher));
  return make_verdict(std::move(findings));
}

}  // namespace dofla
