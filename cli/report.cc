#include <memory>

#include "cli/command.h"
#include "cli/lambda_option.h"
#include "cli/output.h"
#include "cli/usage_error.h"
#include "dofla/core/error.h"
#include "dofla/core/version.h"
#include "dofla/report/from_dof_table.h"
#include "dofla/report/from_sensitivity.h"
#include "dofla/report/page.h"

namespace dofla::cli {
namespace {

struct ReportArguments {
  std::string table, plan, out;
  LambdaOption lambda;
  bool json = false;
};

ReportData dof_report(const ReportArguments& options, const Json& file) {
  const DofTable table = read_dof_table(file, options.table);
  ReportData data;
  data.title = "Degrees of freedom";
  data.model = to_string(table.model);
  data.dof = from_dof_table(table, options.lambda.value().value_or(table.lambda));
  if (!options.plan.empty())
    data.plan = from_dimension_plan(load_dimension_plan(options.plan), &table);
  data.facts = {{"sequences", grouped(table.sequences)},
                {"tokens a sequence", grouped(table.length)},
                {"seed", std::to_string(table.seed)}};
  return data;
}

ReportData sensitivity_report(const ReportArguments& options, const Json& file) {
  if (options.lambda.value())
    throw UsageError("λ is of degrees of freedom, and a sensitivity has none");
  const SensitivityTable table = read_sensitivity(file, options.table);
  ReportData data;
  data.title = "Sensitivity";
  data.model = to_string(table.model);
  if (options.plan.empty()) {
    data.sensitivity = from_sensitivity(table, nullptr);
  } else {
    const DimensionPlan plan = load_dimension_plan(options.plan);
    data.sensitivity = from_sensitivity(table, &plan);
    data.plan = from_dimension_plan(plan, nullptr);
  }
  data.facts = {{"steps of the students", grouped(table.steps)},
                {"windows a step", grouped(table.batch)},
                {"tokens a window", grouped(table.length)},
                {"seed", std::to_string(table.seed)}};
  return data;
}

void run(const ReportArguments& options) {
  prepare_place(options.out);
  const Json file = load_json(options.table, Input::kFileOrPipe);
  ReportData data =
      is_sensitivity(file) ? sensitivity_report(options, file) : dof_report(options, file);
  data.version = version();
  data.command =
      fmt::format("dofla report {} {} --out {}", options.table, options.plan, options.out);
  const std::string page = render_page(data);
  write_whole(options.out, page);
  if (options.json) return print_json({{"out", options.out}, {"bytes", page.size()}});
  print(fmt::format("{}: {}\n", options.out, with_bytes_unit(static_cast<int64_t>(page.size()))));
}

}  // namespace

Command add_report(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "report", "Draw degrees of freedom or sensitivity, and plan, as a web page");
  const auto options = std::make_shared<ReportArguments>();
  app->add_option("FILE", options->table, "file of dofla dof or dofla sensitivity")
      ->type_name("")
      ->required();
  app->add_option("PLAN", options->plan, "file of dofla plan (may be left out)")->type_name("");
  add_out(*app, options->out, "the page; one file that needs no network", "F")->required();
  options->lambda.add(*app, "the ridge λ to show (default: that of FILE)");
  add_json_flag(*app, options->json);
  app->footer(
      "Example:\n  dofla report dof.json plan.json --out page.html\n\n"
      "JSON:\n  {\"out\", \"bytes\"}");
  return {app, [options] { run(*options); }};
}

}  // namespace dofla::cli
