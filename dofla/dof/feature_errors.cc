#include "dofla/dof/feature_errors.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "dofla/distributed/agreement.h"
#include "dofla/dof/each_draw.h"
#include "dofla/features/feature_map.h"

namespace dofla {

FeatureErrors feature_errors(const RidgeKernel& kernel, const std::vector<int64_t>& ladder,
                             int64_t head_size, uint64_t seed, uint64_t stream) {
  const int64_t most = *std::max_element(ladder.begin(), ladder.end());
  FeatureErrors out;
  const Tensor gaussian = gaussian_directions(most, head_size, seed, stream);
  const std::vector<double> scores = kernel.log_scores(gaussian);
  out.largest_score = std::exp(*std::max_element(scores.begin(), scores.end()));
  out.gaussian = kernel.errors(gaussian, std::vector<double>(scores.size()), ladder);

  Random random(seed, stream);
  const Tensor drawn = kernel.draw(most, random);
  std::vector<double> log_alpha = kernel.log_scores(drawn);
  for (double& value : log_alpha) value = std::log(kernel.dof()) - value;
  out.leverage = kernel.errors(drawn, log_alpha, ladder);
  return out;
}

namespace {

// Of ranks that each have those of their share of the heads: all, on all.
void gather_errors(const Group& group, std::vector<FeatureErrors>& errors) {
  if (group.alone()) return;
  std::vector<std::vector<double>> rows;
  for (const FeatureErrors& head : errors) {
    std::vector<double>& row = rows.emplace_back(1, head.largest_score);
    row.insert(row.end(), head.gaussian.begin(), head.gaussian.end());
    row.insert(row.end(), head.leverage.begin(), head.leverage.end());
  }
  gather_rows(group, rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto first = rows[i].begin() + 1, half = first + (rows[i].end() - first) / 2;
    errors[i] = {.gaussian = {first, half},
                 .leverage = {half, rows[i].end()},
                 .largest_score = rows[i].front()};
  }
}

}  // namespace

void add_errors(const QueryKeySampler& sampler, DofTable& table, const Progress& progress,
                const Group& group) {
  table.ladder.assign(std::begin(kErrorLadder), std::end(kErrorLadder));
  table.errors.resize(static_cast<size_t>(table.model.layers * table.heads_in_layer()));
  for_each_draw(table, 1, "errors of features", progress, group, [&](const HeadDraw& one) {
    const Tensor sample = sampler.sample(one.layer, one.head, 0).to(Device());
    table.errors[one.row] =
        feature_errors(RidgeKernel(sample, table.gram, table.lambda), table.ladder,
                       table.model.head_size, table.seed, one.row);
  });
  gather_errors(group, table.errors);
}

}  // namespace dofla
