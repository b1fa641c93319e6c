#include "cli/evaluate_recall.h"

#include <algorithm>
#include <optional>

#include <fmt/ranges.h>

#include "cli/output.h"
#include "cli/progress_bar.h"
#include "dofla/core/error.h"
#include "dofla/evaluate/recall.h"
#include "dofla/linear/linear_model.h"

namespace dofla::cli {
namespace {

// The result of a distance; nothing where that did not fit.
template <class Result>
const Result* find(const std::vector<Result>& results, int64_t distance) {
  const auto found = std::ranges::find(results, distance, &Result::distance);
  return found == results.end() ? nullptr : &*found;
}

std::string share(const RecallResult* result, int64_t RecallResult::*count) {
  if (result == nullptr) return "–";
  const auto part = static_cast<double>(result->*count),
             all = static_cast<double>(result->questions);
  return fmt::format("{:.1f} %", 100 * part / all);
}

std::string share(const InductionResult* result) {
  return result == nullptr ? "–" : fmt::format("{:.1f} %", 100 * result->accuracy);
}

OrderedJson to_json(const RecallReport& report, const std::optional<RecallReport>& teacher) {
  OrderedJson recall = OrderedJson::array(), induction = OrderedJson::array();
  for (const RecallResult& row : report.recall) {
    recall.push_back({{"distance", row.distance},
                      {"questions", row.questions},
                      {"exact", row.exact},
                      {"confused", row.confused},
                      {"chance", row.chance}});
    if (!teacher) continue;
    const RecallResult* beside = find(teacher->recall, row.distance);
    recall.back()["teacher_exact"] = beside ? OrderedJson(beside->exact) : OrderedJson();
    recall.back()["teacher_confused"] = beside ? OrderedJson(beside->confused) : OrderedJson();
  }
  for (const InductionResult& row : report.induction) {
    induction.push_back({{"distance", row.distance}, {"accuracy", row.accuracy}});
    if (!teacher) continue;
    const InductionResult* beside = find(teacher->induction, row.distance);
    induction.back()["teacher_accuracy"] = beside ? OrderedJson(beside->accuracy) : OrderedJson();
  }
  return {{"recall", std::move(recall)}, {"induction", std::move(induction)}};
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
  app.add_option("--distances", distances_, "tokens between a number and the question")
      ->type_name("N,N")
      ->delimiter(',')
      ->check(whole_between(1, 1 << 24))
      ->needs(recall)
      ->capture_default_str();
  add_number(app, "--questions", questions_, "questions at each distance", "N",
             whole_between(1, 1 << 24))
      ->needs(recall)
      ->capture_default_str();
  add_number(app, "--seed", seed_, "of the numbers and their places", "S", seed_number())
      ->needs(recall)
      ->capture_default_str();
}

void RecallArguments::run(const fs::path& model_folder, const std::string& teacher_folder,
                          const Device& device, const TextArguments& text, bool json) const {
  std::vector<int64_t> distances = distances_;
  std::ranges::sort(distances);
  distances.erase(std::unique(distances.begin(), distances.end()), distances.end());

  const Checkpoint checkpoint(model_folder);
  const Tokenizer tokenizer = Tokenizer::load(checkpoint.folder());
  const Transformer model = load_model(checkpoint, device);
  const int64_t longest = longest_recall(model, distances);
  const RecallPrompts prompts(
      tokenizer, text.read_running(checkpoint, questions_ * RecallPrompts::tokens(longest)),
      questions_, longest, seed_);
  const auto measure = [&](const Transformer& which) {
    ProgressBar bar;
    return evaluate_recall(which, tokenizer, prompts, distances, {}, bar.progress());
  };
  std::optional<RecallReport> beside;
  if (!teacher_folder.empty()) {
    const Checkpoint teacher_checkpoint(teacher_folder);
    const Transformer teacher = load_model(teacher_checkpoint, device);
    if (teacher.config().vocabulary != model.config().vocabulary)
      fail("cannot compare: the teacher has a vocabulary of {}, the model of {}",
           teacher.config().vocabulary, model.config().vocabulary);
    beside = measure(teacher);
    teacher_checkpoint.require_unchanged();
    remark_on_missing("teacher's ", distances, *beside, teacher.most_tokens());
  }
  const RecallReport report = measure(model);
  checkpoint.require_unchanged();
  remark_on_missing("", distances, report, model.most_tokens());
  if (json) return print_json(to_json(report, beside));
  print_table(distances, report, beside);
}

}  // namespace dofla::cli
