// Times of inference and training.
#include <algorithm>

#include "dofla/reproduce/published.h"
#include "dofla/reproduce/table_parts.h"
#include "dofla/reproduce/tables.h"
#include "dofla/reproduce/timing_runs.h"

namespace dofla {
namespace {

template <class Value>
std::optional<size_t> place_of(const std::vector<Value>& values, const Value& value) {
  const auto found = std::find(values.begin(), values.end(), value);
  if (found == values.end()) return std::nullopt;
  return static_cast<size_t>(found - values.begin());
}

}  // namespace

ResultTable inference_table(const Study& study, const RunFolder& folder, int64_t cost) {
  const std::vector<int64_t>& lengths = study.suite.timing;
  const std::vector<PlanStrategy>& strategies = study.suite.strategies;
  ResultTable table = {.title = fmt::format("Inference time at cost {}", cost),
                       .label_names = {"model"},
                       .columns = {},
                       .rows = {},
                       .notes = {}};
  for (const int64_t length : lengths)
    for (const char* what : {"prefill", "decode"})
      table.columns.push_back({fmt::format("{} at {}, ms", what, length), study.teacher_name});
  table.columns.push_back({"decode, to Fix", study.teacher_name});
  table.columns.push_back({"1,000 tokens, s", kPaper});
  table.columns.push_back({"to Fix", kPaper});

  const auto times = if_recorded([&] { return read_inference(study, folder, cost); });
  const auto fix = place_of(strategies, PlanStrategy::kFix);
  const auto decode = [&](size_t model) -> std::optional<double> {
    return times ? std::optional((*times)[model].back().decode) : std::nullopt;
  };
  for (size_t model = 0; model <= strategies.size(); ++model) {
    const bool teacher = model == 0;
    TableRow row = {{teacher ? "teacher" : title_of(strategies[model - 1])}, {}};
    for (size_t i = 0; i < lengths.size(); ++i) {
      row.cells.push_back(times ? number_cell((*times)[model][i].prefill, 3) : dash());
      row.cells.push_back(times ? number_cell((*times)[model][i].decode, 3) : dash());
    }
    row.cells.push_back(fix ? ratio_cell(decode(model), decode(*fix + 1)) : dash());
    const auto published =
        teacher ? std::nullopt : published::inference_seconds(strategies[model - 1]);
    row.cells.push_back(number_cell(published, 3));
    row.cells.push_back(ratio_cell(published, published::inference_seconds(PlanStrategy::kFix)));
    table.rows.push_back(std::move(row));
  }
  table.notes.push_back(fmt::format(
      "Milliseconds a token, the fastest of three, on {}. Prefill: a prompt that fills the length "
      "but for the last tokens, read at once; decode: these, one by one. The ratio is of decoding "
      "at the longest length. The paper's (Table 4) are seconds a sequence of 1,000 tokens on an "
      "A100, without the teacher: only the ratios can be compared.",
      study.device.description()));
  return table;
}

ResultTable training_time_table(const Study& study, const RunFolder& folder, int64_t cost) {
  const std::vector<LossKind>& losses = study.suite.losses;
  ResultTable table = {.title = fmt::format("Training time a sample at cost {}", cost),
                       .label_names = {"loss"},
                       .columns = {{"ms", study.teacher_name},
                                   {"to the teacher's forward", study.teacher_name},
                                   {"to direct", study.teacher_name},
                                   {"ms", kPaper},
                                   {"to direct", kPaper}},
                       .rows = {},
                       .notes = {}};
  const auto times = if_recorded([&] { return read_training_time(study, folder, cost); });
  const auto forward = times ? std::optional(times->teacher_forward) : std::nullopt;
  const auto of_loss = [&](LossKind loss) -> std::optional<double> {
    const auto place = place_of(losses, loss);
    return times && place ? std::optional(times->losses[*place]) : std::nullopt;
  };
  const auto direct = of_loss(LossKind::kDirect);
  table.rows.push_back({{"teacher's forward"},
                        {number_cell(forward, 1), ratio_cell(forward, forward),
                         ratio_cell(forward, direct), dash(), dash()}});
  for (const LossKind loss : losses) {
    const auto published = published::training_milliseconds(loss);
    table.rows.push_back(
        {{std::string(name(loss))},
         {number_cell(of_loss(loss), 1), ratio_cell(of_loss(loss), forward),
          ratio_cell(of_loss(loss), direct), number_cell(published, 1),
          ratio_cell(published, published::training_milliseconds(LossKind::kDirect))}});
  }
  table.notes.push_back(fmt::format(
      "A sample is a window of {} tokens, in steps of {}; the fastest of three, on {}, all in one "
      "run. The paper's (Table 5) are of 1024 tokens on A100s.",
      study.text.train.length(), study.suite.batch, study.device.description()));
  return table;
}

}  // namespace dofla
