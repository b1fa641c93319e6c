#include "cli/evaluate_recall.h"

#include <algorithm>
#include <optional>

#include <fmt/ranges.h>

#include "cli/output.h"
#include "cli/progress_bar.h"
#include "dofla/evaluate/answers_json.h"

namespace dofla::cli {
namespace {

// The result of a distance; nothing where that did not fit.
template <class Result>
const Result* find(const std::vector<Result>& results, int64_t distance) {
  const auto found = std::ranges::find(results, distance, &Result::distance);
  return found == results.end() ? nullptr : &*found;
}

template <class Result>
std::string share(const Result* result, int64_t Result::*count) {
  if (result == nullptr) return "–";
  const auto part = static_cast<double>(result->*count),
             all = static_cast<double>(result->questions);
  return fmt::format("{:.1f} %", 100 * part / all);
}

std::string share(const InductionResult* result) {
  return result == nullptr ? "–" : fmt::format("{:.1f} %", 100 * result->accuracy);
}

// The same length and depth.
const NeedleResult* find(const std::vector<NeedleResult>& results, const NeedleResult& like) {
  const auto found = std::ranges::find_if(results, [&](const NeedleResult& result) {
    return result.length == like.length && result.depth == like.depth;
  });
  return found == results.end() ? nullptr : &*found;
}

// A figure of the teacher, or null where it has none.
template <class Result, class Value>
OrderedJson beside(const Result* result, Value Result::*value) {
  return result == nullptr ? OrderedJson() : OrderedJson(result->*value);
}

OrderedJson recall_json(const RecallReport& report, const std::optional<RecallReport>& teacher) {
  OrderedJson json = to_json(report);
  for (size_t i = 0; teacher && i < report.recall.size(); ++i) {
    const RecallResult* row = find(teacher->recall, report.recall[i].distance);
    json["recall"][i]["teacher_exact"] = beside(row, &RecallResult::exact);
    json["recall"][i]["teacher_confused"] = beside(row, &RecallResult::confused);
  }
  for (size_t i = 0; teacher && i < report.needle.size(); ++i)
    json["needle"][i]["teacher_exact"] =
        beside(find(teacher->needle, report.needle[i]), &NeedleResult::exact);
  for (size_t i = 0; teacher && i < report.induction.size(); ++i)
    json["induction"][i]["teacher_accuracy"] =
        beside(find(teacher->induction, report.induction[i].distance), &InductionResult::accuracy);
  return json;
}

void print_recall_line(const std::string& who, int64_t distance, const RecallReport& report) {
  const RecallResult* recall = find(report.recall, distance);
  print(fmt::format("{:>8}  {:<7}  {:>9}  {:>7}  {:>8}  {:>6}  {:>9}\n", distance, who,
                    recall ? grouped(recall->questions) : "–", share(recall, &RecallResult::exact),
                    share(recall, &RecallResult::confused),
                    recall ? fmt::format("{:.0f} %", 100 * recall->chance) : "–",
                    share(find(report.induction, distance))));
}

void print_table(const std::vector<int64_t>& distances, const RecallReport& report,
                 const std::optional<RecallReport>& teacher) {
  print(fmt::format("{:>8}  {:<7}  {:>9}  {:>7}  {:>8}  {:>6}  {:>9}\n", "distance", "model",
                    "questions", "exact", "confused", "chance", "induction"));
  for (const int64_t distance : distances) {
    if (!find(report.recall, distance) && !find(report.induction, distance)) continue;
    print_recall_line("this", distance, report);
    if (teacher) print_recall_line("teacher", distance, *teacher);
  }
}

void print_needles(const RecallReport& report, const std::optional<RecallReport>& teacher) {
  if (report.needle.empty()) return;
  print(fmt::format("\n{:>8}  {:>5}  {:<7}  {:>9}  {:>7}  {:>6}\n", "needle in", "depth", "model",
                    "questions", "exact", "chance"));
  const auto print_line = [](const char* who, const NeedleResult& row, const NeedleResult* result) {
    print(fmt::format("{:>9}  {:>5}  {:<7}  {:>9}  {:>7}  {:>4.2f} %\n", row.length, row.depth, who,
                      grouped(row.questions), share(result, &NeedleResult::exact),
                      100 * row.chance));
  };
  for (const NeedleResult& row : report.needle) {
    print_line("this", row, &row);
    if (teacher) print_line("teacher", row, find(teacher->needle, row));
  }
}

// Says which distances were left out because they do not fit.
template <class Result>
void remark_on_missing(const std::string& what, const std::vector<int64_t>& distances,
                       const std::vector<Result>& results, int64_t most_tokens) {
  std::vector<int64_t> missing;
  std::ranges::copy_if(distances, std::back_inserter(missing),
                       [&](int64_t distance) { return find(results, distance) == nullptr; });
  if (!missing.empty())
    remark(fmt::format("{} left out at {} tokens: longer than the context of {}", what,
                       fmt::join(missing, ", "), most_tokens));
}

void remark_on_missing(const std::string& who, const std::vector<int64_t>& distances,
                       const RecallReport& report, int64_t most_tokens) {
  remark_on_missing(who + "recall", distances, report.recall, most_tokens);
  remark_on_missing(who + "induction", distances, report.induction, most_tokens);
}

}  // namespace

void RecallArguments::add(CLI::App& app) {
  CLI::Option* recall = app.add_flag(
      "--recall", given_, "ask for numbers that stood in the prompt instead: docs/recall.md");
  for (const char* other : {"--ids", "--length", "--sequences", "--task"})
    recall->excludes(app.get_option(other));
  app.add_option("--distances", options_.distances, "tokens between a number and the question")
      ->type_name("N,N")
      ->delimiter(',')
      ->check(whole_between(1, 1 << 24))
      ->needs(recall)
      ->capture_default_str();
  app.add_option("--depths", options_.depths,
                 "of a single number in a text of that length: 0 at its beginning")
      ->type_name("X,X")
      ->delimiter(',')
      ->check(real_between(0, 1))
      ->needs(recall)
      ->capture_default_str();
  add_number(app, "--questions", options_.questions, "questions at each distance", "N",
             whole_between(1, 1 << 24))
      ->needs(recall)
      ->capture_default_str();
  add_number(app, "--seed", options_.seed, "of the numbers and their places", "S", seed_number())
      ->needs(recall)
      ->capture_default_str();
}

void RecallArguments::run(const fs::path& model_folder, const std::string& teacher_folder,
                          const std::optional<ExactKeys>& exact, const Device& device,
                          const TextArguments& text, bool json, const Group& group) const {
  RecallOptions asked = options_;
  asked.exact = exact;
  const Checkpoint checkpoint(model_folder);
  std::optional<Checkpoint> teacher;
  if (!teacher_folder.empty()) teacher.emplace(teacher_folder);
  const auto running_text = [&](int64_t most) { return text.read_running(checkpoint, most); };
  RecallEvaluation found;
  {
    ProgressBar bar;
    found = evaluate_recall(checkpoint, teacher ? &*teacher : nullptr, running_text, asked, device,
                            bar.progress(), group);
  }
  if (!group.is_first()) return;
  if (found.teacher)
    remark_on_missing("teacher's ", found.distances, *found.teacher, found.teacher_most_tokens);
  remark_on_missing("", found.distances, found.report, found.most_tokens);
  if (json) return print_json(recall_json(found.report, found.teacher));
  print_table(found.distances, found.report, found.teacher);
  print_needles(found.report, found.teacher);
}

}  // namespace dofla::cli
