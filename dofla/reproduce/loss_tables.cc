// Next-token loss: the students, the baselines, and equal time.
#include <algorithm>
#include <cmath>

#include "dofla/reproduce/published.h"
#include "dofla/reproduce/table_parts.h"
#include "dofla/reproduce/tables.h"

namespace dofla {
namespace {

// The share of the way from Performer to the teacher that a student has gone.
std::optional<double> gap_closed(double loss, const std::optional<double>& performer,
                                 const std::optional<double>& teacher) {
  if (!performer || !teacher || !(*performer > *teacher)) return std::nullopt;
  return (*performer - loss) / (*performer - *teacher);
}

std::string percent_of_gap(double share) {
  const double value = std::round(100 * share);
  return fmt::format("{}{:.0f} %", value < 0 ? "−" : "", std::abs(value));
}

// Those that the paper has figures for.
constexpr std::array kPublishedLosses = {LossKind::kDirect, LossKind::kSoftmax, LossKind::kL2};

// What losses are judged against, at one cost.
struct Ends {
  std::optional<double> performer, teacher;
};

std::optional<double> mean_of(const std::vector<double>& values) {
  const auto result = mean_spread(values);
  return result ? std::optional(result->mean) : std::nullopt;
}

Student student_of(int64_t cost, PlanStrategy strategy, LossKind loss) {
  return {.cost = cost, .strategy = strategy, .loss = loss};
}
Student baseline_of(int64_t cost, FeatureMap map) {
  return {.cost = cost, .map = map, .loss = {}};
}

Ends ends_of(const Study& study, const RunFolder& folder, int64_t cost) {
  Ends ends;
  ends.performer = mean_of(over_seeds(study, folder, baseline_of(cost, FeatureMap::kPerformer),
                                      &StudentResult::student_loss));
  // Every student was compared with the same teacher on the same text.
  std::vector<double> teacher;
  for (const Student& student : students(study.suite))
    if (const auto result = if_recorded([&] { return read_student_result(folder, student); }))
      teacher.push_back(result->teacher_loss);
  ends.teacher = mean_of(teacher);
  return ends;
}

const Ends& published_ends() {
  static const Ends ends = {published::baseline_loss(FeatureMap::kPerformer),
                            published::teacher_loss()};
  return ends;
}

// "4.258 ± 0.029 (54 %)"
TableCell loss_cell(const std::vector<double>& losses, const Ends& ends) {
  const auto loss = mean_spread(losses);
  TableCell cell = spread_cell(loss, 3);
  const auto share = loss ? gap_closed(loss->mean, ends.performer, ends.teacher) : std::nullopt;
  if (share)
    cell.aside += fmt::format("{}({})", cell.aside.empty() ? "" : " ", percent_of_gap(*share));
  return cell;
}

TableCell published_cell(const std::optional<double>& loss) {
  TableCell cell = number_cell(loss, 4);
  if (loss)
    cell.aside = fmt::format("({})", percent_of_gap(*gap_closed(*loss, published_ends().performer,
                                                                published_ends().teacher)));
  return cell;
}

// A student's loss less that of the student of the same seed that has equally many features in
// every head.
std::vector<double> less_fix(const Study& study, const RunFolder& folder, Student student) {
  std::vector<double> differences;
  for (const uint64_t seed : study.suite.seeds) {
    student.seed = seed;
    Student fix = student;
    fix.strategy = PlanStrategy::kFix;
    const auto loss = [&](const Student& of) {
      return if_recorded([&] { return read_student_result(folder, of).student_loss; });
    };
    if (const auto one = loss(student), other = loss(fix); one && other)
      differences.push_back(*one - *other);
  }
  return differences;
}

TableCell difference_cell(double difference) {
  return {.text = fmt::format("{}{:.3f}", difference < 0 ? "−" : "+", std::abs(difference)),
          .aside = {}};
}

// "−0.104 ± 0.006 (ahead in 3 of 3)"
TableCell paired_cell(const std::vector<double>& differences) {
  const auto mean = mean_spread(differences);
  if (!mean) return dash();
  TableCell cell = difference_cell(mean->mean);
  if (mean->spread > 0) cell.aside = fmt::format("± {:.3f} ", mean->spread);
  const auto ahead = std::ranges::count_if(differences, [](double d) { return d < 0; });
  cell.aside += fmt::format("(ahead in {} of {})", ahead, differences.size());
  return cell;
}

TableCell published_difference(PlanStrategy strategy, LossKind loss) {
  const auto own = published::next_token_loss(strategy, loss);
  const auto fix = published::next_token_loss(PlanStrategy::kFix, loss);
  return own && fix ? difference_cell(*own - *fix) : dash();
}

std::string judged_by(const Study& study) {
  return fmt::format("{} held-out windows of {} tokens", study.text.held_out.size(),
                     study.text.train.length());
}

}  // namespace

ResultTable loss_table(const Study& study, const RunFolder& folder, int64_t cost) {
  const Suite& suite = study.suite;
  const Ends ends = ends_of(study, folder, cost);
  ResultTable table = {.title = fmt::format("Next-token loss at cost {}", cost),
                       .label_names = {"strategy"},
                       .columns = {},
                       .rows = {},
                       .notes = {}};
  const auto add_column = [&](LossKind loss, const std::string& of) {
    table.columns.push_back({std::string(name(loss)), of});
  };
  for (const LossKind loss : suite.losses) add_column(loss, study.teacher_name);
  for (const LossKind loss : kPublishedLosses) add_column(loss, kPaper);
  for (const PlanStrategy strategy : suite.strategies) {
    TableRow& row = table.rows.emplace_back(TableRow{{title_of(strategy)}, {}});
    for (const LossKind loss : suite.losses)
      row.cells.push_back(loss_cell(
          over_seeds(study, folder, student_of(cost, strategy, loss), &StudentResult::student_loss),
          ends));
    for (const LossKind loss : kPublishedLosses)
      row.cells.push_back(published_cell(published::next_token_loss(strategy, loss)));
  }
  table.notes.push_back(fmt::format(
      "Nats a token on {}, after {} steps of {} windows: {}, and the share of the gap that is "
      "closed, (Performer − student) / (Performer − teacher). The paper's are of GPT-2 on its own "
      "text (its Table 7), at cost 64 after one pass over a tenth of Wikipedia.",
      judged_by(study), suite.steps, suite.batch, mean_over_seeds_phrase(suite)));
  return table;
}

ResultTable paired_table(const Study& study, const RunFolder& folder, int64_t cost) {
  ResultTable table = {
      .title = fmt::format("Loss less that of Fix with the same seed, at cost {}", cost),
      .label_names = {"strategy"},
      .columns = {},
      .rows = {},
      .notes = {"Nats a token, negative where the strategy is better, with the number of seeds in "
                "which it is."}};
  for (const LossKind loss : study.suite.losses)
    table.columns.push_back({std::string(name(loss)), study.teacher_name});
  for (const LossKind loss : kPublishedLosses)
    table.columns.push_back({std::string(name(loss)), kPaper});
  for (const PlanStrategy strategy : study.suite.strategies) {
    if (strategy == PlanStrategy::kFix) continue;
    TableRow& row = table.rows.emplace_back(TableRow{{title_of(strategy)}, {}});
    for (const LossKind loss : study.suite.losses)
      row.cells.push_back(paired_cell(less_fix(study, folder, student_of(cost, strategy, loss))));
    for (const LossKind loss : kPublishedLosses)
      row.cells.push_back(published_difference(strategy, loss));
  }
  return table;
}

ResultTable baseline_table(const Study& study, const RunFolder& folder, int64_t cost) {
  const Ends ends = ends_of(study, folder, cost);
  ResultTable table = {.title = fmt::format("Baselines at cost {}", cost),
                       .label_names = {"method"},
                       .columns = {{"loss", study.teacher_name}, {"loss", kPaper}},
                       .rows = {},
                       .notes = {}};
  for (const FeatureMap map : study.suite.baselines)
    table.rows.push_back(
        {{title_of(map)},
         {loss_cell(over_seeds(study, folder, baseline_of(cost, map), &StudentResult::student_loss),
                    ends),
          published_cell(published::baseline_loss(map))}});
  table.rows.push_back(
      {{"Teacher"}, {number_cell(ends.teacher, 3), number_cell(published::teacher_loss(), 4)}});
  table.notes.emplace_back(
      "Performer as drawn; of DiJiang the weights are trained on the next-token loss, for as many "
      "steps as the students.");
  return table;
}

ResultTable equal_time_table(const Study& study, const RunFolder& folder, int64_t cost) {
  const EqualTime& equal = *study.suite.equal_time;
  const Ends ends = ends_of(study, folder, cost);
  ResultTable table = {.title = fmt::format("Equal time at cost {}: {} against {}", cost,
                                            name(equal.loss), name(equal.as)),
                       .label_names = {"strategy", "loss", "given"},
                       .columns = {{"steps", study.teacher_name},
                                   {"training, s", study.teacher_name},
                                   {"next-token loss", study.teacher_name},
                                   {"next-token loss", kPaper}},
                       .rows = {},
                       .notes = {}};
  const auto add = [&](Student student, bool equal_time, const char* label) {
    student.equal_time = equal_time;
    const auto figures = [&](double StudentResult::*figure) {
      return over_seeds(study, folder, student, figure);
    };
    const std::vector<double> steps = figures(&StudentResult::steps);
    std::vector<double> seconds = figures(&StudentResult::step_seconds);
    std::transform(seconds.begin(), seconds.end(), steps.begin(), seconds.begin(),
                   std::multiplies<>());
    const auto published = published::next_token_loss(student.strategy, student.loss.value());
    table.rows.push_back({{title_of(student.strategy), std::string(student.loss_or_map()), label},
                          {spread_cell(mean_spread(steps), 0), spread_cell(mean_spread(seconds), 1),
                           loss_cell(figures(&StudentResult::student_loss), ends),
                           equal_time ? dash() : published_cell(published)}});
  };
  for (const PlanStrategy strategy : study.suite.strategies) {
    add(student_of(cost, strategy, equal.as), false, "");
    add(student_of(cost, strategy, equal.loss), false, "equal steps");
    add(student_of(cost, strategy, equal.loss), true, "equal time");
  }
  table.notes.push_back(fmt::format(
      "At equal steps, and with {} given as many steps as take the time that {} took. Times of "
      "training alone, in the runs themselves.",
      name(equal.loss), name(equal.as)));
  return table;
}

}  // namespace dofla
