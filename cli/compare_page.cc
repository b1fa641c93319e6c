#include "cli/compare_page.h"

#include "cli/command.h"
#include "cli/compare_questions.h"
#include "cli/invocation.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "dofla/core/version.h"
#include "dofla/report/fidelity_page.h"

namespace dofla::cli {
namespace {

// The windows one after the other.
TokenIds running_text(const WindowSet& windows, int64_t most_tokens) {
  TokenIds ids;
  for (size_t w = 0; w < windows.size() && std::ssize(ids) < most_tokens; ++w) {
    const TokenIds window = windows[w];
    ids.insert(ids.end(), window.begin(), window.end());
  }
  ids.resize(static_cast<size_t>(std::min(std::ssize(ids), most_tokens)));
  return ids;
}

FidelityReport compare_held_out(const WindowSet& held_out, const Checkpoint& teacher,
                                const Checkpoint& student, const Device& device,
                                const Progress& progress) {
  constexpr FidelitySuite kSuite = FidelitySuite::kQuick;
  CompareInput input;
  input.texts.push_back({.name = "held out", .in_domain = true, .windows = held_out.all()});
  input.questions = CompareQuestions().read(
      teacher, Tokenizer::load(teacher.folder()),
      [&](int64_t most_tokens) { return running_text(held_out, most_tokens); }, kSuite,
      input.left_out);
  return compare_models(teacher, {&student}, input, kSuite, device, progress);
}

}  // namespace

CLI::Option* ComparePage::add(CLI::App& app) {
  return app
      .add_option("--compare", file_,
                  "compare the new model with its teacher as dofla compare --suite quick does,\n"
                  "on the windows held out, and write the page")
      ->type_name("F");
}

void ComparePage::prepare(const Checkpoint& teacher) const {
  if (file_.empty()) return;
  prepare_place(file_);
  Tokenizer::load(teacher.folder());
}

std::optional<Verdict> ComparePage::write(const Checkpoint& teacher, const std::string& student,
                                          const WindowSet& held_out, const Device& device,
                                          const std::atomic<bool>* stop) const {
  if (file_.empty()) return std::nullopt;
  try {
    ProgressBar bar(stop);
    const FidelityReport report =
        compare_held_out(held_out, teacher, Checkpoint(student), device, bar.progress());
    write_whole(file_, render_fidelity_page(
                           report, {.command = command_line(), .version = std::string(version())}));
    remark(fmt::format("open {}", file_));
    return report.students.front().verdict;
  } catch (const Cancelled&) {
    remark(fmt::format("{}: stopped, and not written; dofla compare makes it", file_));
    return std::nullopt;
  }
}

std::string verdict_lines(const std::optional<Verdict>& verdict, int columns) {
  if (!verdict) return "";
  std::string text =
      fmt::format("{:<{}}{}: {}\n", "verdict", columns, name(verdict->grade), verdict->headline);
  for (const Finding& finding : verdict->findings)
    text += fmt::format("{:<{}}{}: {}\n", "", columns, one_line(finding.about),
                        one_line(finding.words));
  return text;
}

}  // namespace dofla::cli
