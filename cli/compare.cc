#include <algorithm>
#include <memory>

#include "cli/choice_option.h"
#include "cli/command.h"
#include "cli/compare_questions.h"
#include "cli/compare_texts.h"
#include "cli/device_option.h"
#include "cli/invocation.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/usage_error.h"
#include "dofla/core/error.h"
#include "dofla/core/version.h"
#include "dofla/fidelity/fidelity_json.h"
#include "dofla/pipeline/text.h"
#include "dofla/report/fidelity_page.h"

namespace dofla::cli {
namespace {

struct CompareArguments {
  std::string teacher;
  std::vector<std::string> students;
  CompareTexts texts;
  CompareQuestions questions;
  DeviceOption device;
  FidelitySuite suite = FidelitySuite::kQuick;
  std::string out, markdown;
  bool json = false;
};

void require_different(const CompareArguments& options) {
  std::vector<fs::path> places;
  for (const std::string& student : options.students) {
    const fs::path place = fs::weakly_canonical(student);
    if (std::ranges::find(places, place) != places.end())
      throw UsageError(fmt::format("{}: given twice; every student is measured once", student));
    places.push_back(place);
  }
}

void print_text(const TextFidelity& text) {
  const Divergence& divergence = text.divergence;
  print(fmt::format(
      "  {:<22} {:>8}  {:>8.4f}  {:>+8.4f}  {:>8.4f}  {:>7.3f}  {:>7.3f}  {:>6.1f} %  {}\n",
      one_line(text.name) + (text.in_domain ? " *" : ""), grouped(divergence.tokens),
      divergence.teacher_loss, divergence.added(), divergence.kl, divergence.kl_99,
      divergence.kl_999, 100 * divergence.same_top, name(grade_of(divergence))));
}

void print_student(const StudentFidelity& student) {
  print(fmt::format("{} ({}): {}\n", one_line(student.name), student.kind,
                    one_line(student.verdict.headline)));
  print(fmt::format("  {:<22} {:>8}  {:>8}  {:>8}  {:>8}  {:>7}  {:>7}  {:>8}  {}\n", "text",
                    "tokens", "teacher", "student", "KL", "99 %", "99.9 %", "same top", "grade"));
  for (const TextFidelity& text : student.texts) print_text(text);
  for (size_t i = student.texts.size(); i < student.verdict.findings.size(); ++i) {
    const Finding& finding = student.verdict.findings[i];
    print(fmt::format("  {}: {}{}\n", one_line(finding.about), one_line(finding.words),
                      finding.grade ? fmt::format(" ({})", name(*finding.grade)) : ""));
  }
}

void run(const CompareArguments& options, const Group& group) {
  require_different(options);
  options.texts.check();
  if (!options.out.empty() && group.is_first()) prepare_place(options.out);
  if (!options.markdown.empty() && group.is_first()) prepare_place(options.markdown);
  const Device device = options.device.get(group);
  const Checkpoint teacher(options.teacher);
  std::vector<std::unique_ptr<Checkpoint>> folders;
  std::vector<const Checkpoint*> students, models = {&teacher};
  for (const std::string& folder : options.students) {
    folders.push_back(std::make_unique<Checkpoint>(folder));
    students.push_back(folders.back().get());
    models.push_back(folders.back().get());
  }
  FidelityReport report;
  {
    ProgressBar bar;
    CompareInput input = options.texts.read(models, windows_of(options.suite), bar.progress());
    input.questions = options.questions.read(
        teacher, Tokenizer::load(teacher.folder()),
        [&](int64_t most_tokens) {
          return read_running_text(teacher, {.files = {options.texts.first_file()}}, most_tokens);
        },
        options.suite, input.left_out);
    report = compare_models(teacher, students, input, options.suite, device, bar.progress(), group);
  }
  if (!group.is_first()) return;
  const FidelityAbout about = {.command = command_line(), .version = std::string(version())};
  if (!options.out.empty()) write_whole(options.out, render_fidelity_page(report, about));
  if (!options.markdown.empty()) write_whole(options.markdown, fidelity_markdown(report, about));
  if (options.json) return print_json(to_json(report));
  for (const StudentFidelity& student : report.students) print_student(student);
  for (const std::string& what : report.left_out) remark("skipped: " + one_line(what));
  if (!options.out.empty()) remark(fmt::format("open {}", options.out));
}

}  // namespace

Command add_compare(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "compare", "Show where students can replace their teacher and where not, as a web page");
  const auto options = std::make_shared<CompareArguments>();
  app->add_option("TEACHER", options->teacher, "model folder that the students should equal")
      ->type_name("")
      ->required();
  app->add_option("STUDENT", options->students,
                  "model folders: linear, hybrid or softmax, with the teacher's vocabulary")
      ->type_name("...")
      ->required();
  options->device.add(*app);
  options->texts.add(*app);
  options->questions.add(*app);
  add_choice(*app, "--suite", options->suite,
             "how much is measured: quick (16 windows of every\ntext) or full (100)");
  add_out(*app, options->out, "the page; one file that needs no network", "F");
  app->add_option("--markdown", options->markdown, "the numbers as Markdown")->type_name("F");
  add_json_flag(*app, options->json);
  app->footer(
      "On every text, token by token: loss and perplexity, KL from the teacher's distribution to\n"
      "the student's with its standard error and percentiles, agreement of the likeliest tokens,\n"
      "the probability of the actual token, calibration. Where the student differs: by position,\n"
      "frequency, distance to the previous same token, layer and head, and the worst passages.\n"
      "Baselines at equal memory as in dofla evaluate --teacher, and the teacher with rounded\n"
      "weights as a yardstick. Recall, greedy text, last words and tasks. Memory and speed. A\n"
      "verdict from thresholds: docs/fidelity.md has these and all definitions.\n\n"
      "Give texts of several kinds: a student looks best on the kind that it was trained on.\n"
      "--in-domain names the texts of that kind (default: the files that it was trained on).\n\n"
      "Example:\n"
      "  dofla compare path/to/gpt2 gpt2-linear gpt2-hybrid --out page.html\n"
      "  dofla compare path/to/gpt2 gpt2-linear --texts wiki=valid.jsonl.zst news=news.txt\n"
      "    --in-domain wiki --suite full --out page.html --markdown page.md\n\n"
      "JSON:\n"
      "  {\"teacher\", \"window_tokens\", \"teacher_cost\", \"students\": [{\"path\", \"kind\", "
      "\"bytes\",\n"
      "   \"verdict\": {\"grade\", \"headline\", \"findings\"}, \"texts\": [{\"name\", "
      "\"in_domain\",\n"
      "   \"grade\", \"tokens\", \"loss\", \"teacher_loss\", \"kl\", \"kl_stderr\", \"kl_median\", "
      "\"kl_90\",\n"
      "   \"kl_95\", \"kl_99\", \"kl_999\", \"kl_max\", \"p_change\", \"p_change_rms\", "
      "\"same_top\",\n"
      "   \"top5_overlap\", \"entropy_change\", \"calibration\", \"by_position\", "
      "\"by_frequency\",\n"
      "   \"by_distance\", \"controls\", ...}], \"all\", \"attention_error\", \"head_error\", "
      "\"cost\",\n"
      "   \"abilities\", \"agreement\", \"worst\"}], \"yardsticks\", ...}; bytes are of a sequence "
      "as long as the context");
  return {.app = app, .share = [options](const Group& group) { run(*options, group); }};
}

}  // namespace dofla::cli
