#include "cli/closest_name.h"

#include <algorithm>

namespace dofla::cli {
namespace {

// The optimal string alignment distance.
size_t edits(std::string_view from, std::string_view to) {
  std::vector<std::vector<size_t>> cost(from.size() + 1, std::vector<size_t>(to.size() + 1));
  for (size_t i = 0; i <= from.size(); ++i)
    for (size_t j = 0; j <= to.size(); ++j) {
      size_t& best = cost[i][j];
      if (i == 0 || j == 0) {
        best = i + j;
        continue;
      }
      best = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1,
                       cost[i - 1][j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1])
        best = std::min(best, cost[i - 2][j - 2] + 1);
    }
  return cost.back().back();
}

}  // namespace

std::string closest_name(std::string_view word, const std::vector<std::string>& names) {
  constexpr size_t kLongest = 64, kMostEdits = 2;
  if (word.size() > kLongest) return "";
  std::string closest;
  size_t fewest = std::min(kMostEdits + 1, (word.size() + 1) / 2);
  for (const std::string& name : names)
    if (const size_t needed = edits(word, name); needed < fewest) {
      fewest = needed;
      closest = name;
    }
  return closest;
}

}  // namespace dofla::cli
