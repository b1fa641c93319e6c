#include <algorithm>
#include <chrono>
#include <memory>
#include <regex>

#include <fmt/ranges.h>

#include "cli/assets.h"
#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/interruption.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "dofla/core/error.h"
#include "dofla/core/file_lock.h"
#include "dofla/reproduce/matrix.h"
#include "dofla/reproduce/tables.h"

namespace dofla::cli {
namespace {

constexpr size_t kLongestPattern = 1000;

struct ReproduceArguments {
  std::string suite, out, teacher, task_data, only;
  std::vector<std::string> data;
  std::string token_cache;
  DeviceOption device;
  bool json = false;
};

// The suite as its file has it, with what the command line says instead and what is built in.
Suite complete(const ReproduceArguments& options) {
  Suite suite = read_suite(options.suite);
  if (!options.teacher.empty()) suite.teacher = options.teacher;
  if (!options.data.empty()) suite.data.assign(options.data.begin(), options.data.end());
  if (suite.teacher.empty()) suite.teacher = built_in_model();
  if (suite.data.empty()) suite.data = {built_in_text()};
  if (suite.tasks && !options.task_data.empty()) suite.tasks->data = options.task_data;
  if (suite.tasks && suite.tasks->data.empty())
    remark("the suite's tasks are skipped: give the folder of their files with --task-data");
  return suite;
}

std::string minutes(double seconds) {
  return seconds < 90 ? fmt::format("{:.0f} s", seconds) : fmt::format("{:.0f} min", seconds / 60);
}

// Draws the run that is on and how far the whole matrix is.
class Watch {
 public:
  explicit Watch(const std::atomic<bool>* stop) : stop_(stop) {}

  MatrixObserver observer(const std::string& only) {
    MatrixObserver observer;
    if (!only.empty())
      observer.wanted = [pattern = std::regex(only)](const Run& run) {
        return std::regex_search(run.name, pattern);
      };
    observer.starts = [this](const RunStart& start) { return begin(start); };
    observer.ends = [this](const RunRecord& record) { end(record); };
    return observer;
  }

 private:
  Progress begin(const RunStart& start) {
    place_ = fmt::format("{} of {}", start.number + 1, start.total);
    std::string stage = fmt::format("{} {}", place_, start.run.name);
    if (start.seconds_left) stage += fmt::format(" ({} left in all)", minutes(*start.seconds_left));
    bar_ = std::make_unique<ProgressBar>(stop_);
    return Progress(
        [draw = bar_->progress(), stage](ProgressUpdate update) {
          const std::string whole = fmt::format("{}: {}", stage, update.stage);
          update.stage = whole;
          draw.tell(update);
        },
        stop_);
  }
  void end(const RunRecord& record) {
    bar_.reset();
    remark(fmt::format("{} {}: {}", place_, record.name,
                       record.failed() ? "failed: " + one_line(record.error)
                                       : fmt::format("{:.1f} s", record.seconds)));
  }

  const std::atomic<bool>* stop_;
  std::string place_;
  std::unique_ptr<ProgressBar> bar_;
};

OrderedJson to_json(const Study& study, const MatrixOutcome& outcome, double seconds) {
  OrderedJson failed = OrderedJson::array();
  for (const RunRecord& record : outcome.failed)
    failed.push_back({{"run", record.name}, {"error", record.error}});
  return {{"teacher", study.teacher_line()},
          {"ran", outcome.ran},
          {"skipped", outcome.skipped},
          {"failed", std::move(failed)},
          {"seconds", seconds}};
}

void run(const ReproduceArguments& options, const std::atomic<bool>* stop) {
  const auto start = std::chrono::steady_clock::now();
  const fs::path out = options.out;
  const Suite suite = complete(options);
  prepare_place(out / "tables.md");
  const FileLock lock(out / ".lock", options.out);
  const Study study = [&] {
    ProgressBar bar(stop);
    return open_study(suite, out, options.device.get(), bar.progress(), options.token_cache);
  }();
  remark_on(study.remarks);
  RunFolder folder(out / "runs");
  const std::vector<Run> runs = make_matrix(study, folder);
  Watch watch(stop);
  const MatrixObserver observer = watch.observer(options.only);
  if (observer.wanted && std::ranges::none_of(runs, observer.wanted)) {
    std::vector<std::string> names;
    names.reserve(runs.size());
    for (const Run& run : runs) names.push_back(run.name);
    fail("--only {} finds none of the suite's runs: {}", options.only, fmt::join(names, " "));
  }
  const MatrixOutcome outcome = run_matrix(runs, folder, observer);
  const TablesPage page = make_tables(study, folder, outcome.failed);
  write_whole(out / "tables.md", to_markdown(page));
  write_whole(out / "tables.html", render_tables_page(page));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options.json) {
    print_json(to_json(study, outcome, seconds));
  } else {
    for (const ResultTable& table : page.tables) print(to_markdown(table) + "\n");
    remark(fmt::format("{}, {} done before, {}; open {}", counted(outcome.ran, "run"),
                       outcome.skipped, minutes(seconds), (out / "tables.html").string()));
  }
  if (outcome.failed.empty()) return;
  std::vector<std::string> names;
  for (const RunRecord& record : outcome.failed) names.push_back(record.name);
  fail("{} failed: {}; their errors are in {}", counted(static_cast<int64_t>(names.size()), "run"),
       fmt::join(names, ", "), (out / "tables.md").string());
}

void run(const ReproduceArguments& options) {
  const StopFlag stop;
  try {
    run(options, stop.get());
  } catch (const Cancelled& cancelled) {
    remark(fmt::format("{}; the same command continues it", cancelled.what()));
    throw;
  }
}

CLI::Validator regular_expression() {
  const auto check = [](const std::string& text) -> std::string {
    // The parser recurses once for every parenthesis.
    if (text.size() > kLongestPattern)
      return fmt::format("a pattern of {} characters, more than {}", text.size(), kLongestPattern);
    try {
      std::regex parsed(text);
      return {};
    } catch (const std::regex_error&) {
      return fmt::format("{} is not a regular expression", text);
    }
  };
  return CLI::Validator(check, "");
}

}  // namespace

Command add_reproduce(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "reproduce",
      "Run a matrix of strategies, losses and baselines, and write the paper's tables");
  const auto options = std::make_shared<ReproduceArguments>();
  app->add_option("SUITE", options->suite, "JSON file that says what to run; see docs/reproduce.md")
      ->type_name("")
      ->required();
  add_out(*app, options->out, "folder for results and tables; goes on with what is there", "DIR")
      ->required();
  app->add_option("--teacher", options->teacher, "model folder, instead of the suite's")
      ->type_name("DIR");
  app->add_option("--data", options->data, "text files, instead of the suite's")->type_name("F...");
  add_token_cache(*app, options->token_cache);
  app->add_option("--task-data", options->task_data,
                  "folder of the tasks' folders (piqa, arc_easy, ...), instead of the suite's")
      ->type_name("DIR");
  app->add_option("--only", options->only,
                  "run only what has a name that this regular expression matches (dof-s1, "
                  "c64-fix-direct-s2, ...)")
      ->type_name("REGEX")
      ->check(regular_expression());
  options->device.add(*app);
  add_json_flag(*app, options->json);
  app->footer(
      "Every run leaves a small file in DIR/runs. Repeated, the command does only what is not "
      "there\n"
      "yet, failed, or had other settings; a training that was cut short goes on. A run that "
      "fails\n"
      "does not stop the others. At the end tables.md and tables.html show our figures beside the\n"
      "paper's, those of GPT-2.\n\n"
      "Example:\n  dofla reproduce examples/wiki-mini.json --out out/wiki-mini\n\n"
      "JSON:\n  {\"teacher\", \"ran\", \"skipped\", \"failed\": [{\"run\", \"error\"}], "
      "\"seconds\"}; exit 1 if a run\n   failed");
  return {app, [options] { run(*options); }};
}

}  // namespace dofla::cli
