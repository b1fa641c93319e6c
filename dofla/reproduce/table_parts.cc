#include "dofla/reproduce/table_parts.h"

#include <cmath>
#include <numeric>

#include <fmt/ranges.h>

namespace dofla {

std::optional<MeanSpread> mean_spread(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  const auto count = static_cast<double>(values.size());
  MeanSpread result;
  result.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  if (values.size() > 1) result.spread = std::sqrt(squares / (count - 1));
  return result;
}

std::string title_of(PlanStrategy strategy) {
  switch (strategy) {
    case PlanStrategy::kFix:
      return "Fix";
    case PlanStrategy::kDof:
      return "DoF";
    case PlanStrategy::kDofClip:
      return "DoF + Clip";
    case PlanStrategy::kDofHead:
      return "DoF by head";
    case PlanStrategy::kSensitivity:
      break;
  }
  return "Sensitivity";
}

std::string title_of(FeatureMap baseline) {
  return baseline == FeatureMap::kDijiang ? "DiJiang" : "Performer";
}

TableCell dash() {
  return {.text = "–", .aside = {}};
}

TableCell number_cell(const std::optional<double>& value, int decimals) {
  if (!value) return dash();
  return {.text = fmt::format("{:.{}f}", *value, decimals), .aside = {}};
}

TableCell spread_cell(const std::optional<MeanSpread>& value, int decimals) {
  if (!value) return dash();
  TableCell cell = number_cell(value->mean, decimals);
  if (value->spread > 0) cell.aside = fmt::format("± {:.{}f}", value->spread, decimals);
  return cell;
}

TableCell ratio_cell(const std::optional<double>& value, const std::optional<double>& to) {
  return value && to && *to > 0 ? number_cell(*value / *to, 2) : dash();
}

std::string seeds_phrase(const Suite& suite) {
  const std::vector<uint64_t>& seeds = suite.seeds;
  if (seeds.size() == 1) return fmt::format("seed {}", seeds[0]);
  const std::vector<uint64_t> first(seeds.begin(), seeds.end() - 1);
  return fmt::format("seeds {} and {}", fmt::join(first, ", "), seeds.back());
}

std::string mean_over_seeds_phrase(const Suite& suite) {
  const std::string seeds = seeds_phrase(suite);
  return suite.seeds.size() == 1
             ? seeds
             : fmt::format("the mean over {} ± the standard deviation over them", seeds);
}

std::vector<double> over_seeds(const Study& study, const RunFolder& folder, Student student,
                               double StudentResult::*figure) {
  std::vector<double> values;
  for (const uint64_t seed : study.suite.seeds) {
    student.seed = seed;
    if (const auto result = if_recorded([&] { return read_student_result(folder, student); }))
      values.push_back((*result).*figure);
  }
  return values;
}

}  // namespace dofla
