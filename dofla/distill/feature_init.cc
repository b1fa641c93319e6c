#include "dofla/distill/feature_init.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/error.h"
#include "dofla/core/parallel.h"
#include "dofla/core/random.h"
#include "dofla/dof/leverage.h"

namespace dofla {
namespace {

struct Head {
  Tensor z;          // [M, D]
  Tensor log_alpha;  // [M]
};

// z from the leverage density, and α its inverse, so that K̂ is unbiased.
Head leverage_features(const Tensor& samples, int64_t count, const FeatureOptions& options,
                       uint64_t stream) {
  const RidgeKernel kernel(samples, options.leverage.gram, options.leverage.lambda);
  Random random(options.seed, stream);
  Head head = {kernel.draw(count, random), Tensor({count})};
  const std::vector<double> log_score = kernel.log_scores(head.z);
  for (int64_t m = 0; m < count; ++m)
    head.log_alpha.data<float>()[m] =
        static_cast<float>(std::log(kernel.dof()) - log_score[static_cast<size_t>(m)]);
  return head;
}

Head init_head(int64_t layer, int64_t head, int64_t count, const DimensionPlan& plan,
               const FeatureOptions& options) {
  const int64_t size = plan.model.head_size;
  const auto stream = static_cast<uint64_t>(layer * plan.heads_in_layer() + head);
  const Tensor flat = Tensor::zeros({count});
  if (options.map == FeatureMap::kDijiang) return {dijiang_directions(count, size), flat};
  if (options.map == FeatureMap::kPerformer || options.init == FeatureInit::kOrthogonal)
    return {orthogonal_directions(count, size, options.seed, stream), flat};
  if (options.init == FeatureInit::kIid)
    return {gaussian_directions(count, size, options.seed, stream), flat};
  require(options.init == FeatureInit::kLeverage, "init_features: pairs come from PairSampler");
  require(static_cast<bool>(options.leverage.samples),
          "init_features: leverage scores need samples");
  return leverage_features(options.leverage.samples(layer, head), count, options, stream);
}

}  // namespace

FeatureSet init_features(const DimensionPlan& plan, const FeatureOptions& options) {
  FeatureSet set = {.map = options.map, .layers = {}, .exact = plan.exact};
  for (const std::vector<int64_t>& counts : plan.heads) {
    Features layer = {
        .counts = counts, .z = {}, .log_alpha = {}, .subtract_norm = subtracts_norm(options.map)};
    if (!layer.empty()) {
      layer.z = Tensor({layer.total(), plan.model.head_size});
      layer.log_alpha = Tensor({layer.total()});
    }
    set.layers.push_back(std::move(layer));
  }
  const int64_t heads = plan.heads_in_layer();
  parallel_for(plan.model.layers * heads, [&](int64_t i) {
    const int64_t layer = i / heads, head = i % heads;
    Features& features = set.layers[static_cast<size_t>(layer)];
    if (features.empty()) return;
    const int64_t count = features.counts[static_cast<size_t>(head)];
    const int64_t first = features.offsets()[static_cast<size_t>(head)];
    const Head drawn = init_head(layer, head, count, plan, options);
    std::copy_n(drawn.z.data<float>(), drawn.z.count(),
                features.z.data<float>() + first * plan.model.head_size);
    std::copy_n(drawn.log_alpha.data<float>(), count, features.log_alpha.data<float>() + first);
  });
  for (Features& layer : set.layers)
    if (is_untied(options.map) && !layer.empty()) layer = untie(layer, plan.model.heads);
  return set;
}

}  // namespace dofla
