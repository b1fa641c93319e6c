#include "dofla/dof/feature_errors.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "dofla/core/error.h"
#include "dofla/core/parallel.h"
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

void add_errors(const QueryKeySampler& sampler, DofTable& table, const Progress& progress) {
  const int64_t heads = table.heads_in_layer(), count = table.model.layers * heads;
  table.ladder.assign(std::begin(kErrorLadder), std::end(kErrorLadder));
  table.errors.resize(static_cast<size_t>(count));
  int64_t done = 0;
  parallel_for(count, [&](int64_t i) {
    try {
      const Tensor sample = sampler.sample(i / heads, i % heads, 0).to(Device());
      table.errors[static_cast<size_t>(i)] =
          feature_errors(RidgeKernel(sample, table.gram, table.lambda), table.ladder,
                         table.model.head_size, table.seed, static_cast<uint64_t>(i));
    } catch (const Error& error) {
      fail("layer {}, head {}: {}", i / heads + 1, i % heads + 1, error.what());
    }
    ProgressUpdate update = {"errors of features", 0, count, "heads"};
#pragma omp critical(dofla_dof_progress)
    {
      update.done = ++done;
      progress.tell(update);
    }
    stop_if_asked(progress, update);  // out here: nothing may be thrown across the critical section
  });
}

}  // namespace dofla
