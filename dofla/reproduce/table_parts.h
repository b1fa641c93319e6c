// What the tables are put together from: means over seeds, cells, and names.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dofla/core/error.h"
#include "dofla/report/result_table.h"
#include "dofla/reproduce/student_runs.h"

namespace dofla {

inline constexpr const char* kPaper = "paper, GPT-2";  // the heading of its columns

struct MeanSpread {
  double mean = 0;
  double spread = 0;  // sample standard deviation; 0 for a single value
};
std::optional<MeanSpread> mean_spread(const std::vector<double>& values);  // nothing of no values

// What `read` returns; nothing where the record that it needs is not there.
template <class Read>
auto if_recorded(const Read& read) -> std::optional<decltype(read())> {
  try {
    return read();
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string title_of(PlanStrategy strategy);  // "Fix", "DoF", "DoF + Clip", "DoF by head"
std::string title_of(FeatureMap baseline);    // "Performer", "DiJiang"

TableCell dash();  // of what there is no figure for
TableCell number_cell(const std::optional<double>& value, int decimals);
TableCell spread_cell(const std::optional<MeanSpread>& value, int decimals);  // "4.258 ± 0.029"
TableCell ratio_cell(const std::optional<double>& value, const std::optional<double>& to);

// "seeds 1, 2 and 3"; "the mean over … ± the standard deviation over them", where they are several
std::string seeds_phrase(const Suite& suite);
std::string mean_over_seeds_phrase(const Suite& suite);

// A student's figure for every seed that there is a record of.
std::vector<double> over_seeds(const Study& study, const RunFolder& folder, Student student,
                               double StudentResult::*figure);

}  // namespace dofla
