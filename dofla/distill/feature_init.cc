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

// Draws without replacement with probability in proportion to exp(log_score) (the Gumbel trick),
// and α = 1/q with q the density of the draw relative to the pool's.
Head leverage_features(const Tensor& samples, int64_t count, int64_t size,
                       const FeatureOptions& options, uint64_t stream) {
  const int64_t pool_size = std::max<int64_t>(1024, 8 * count);
  const Tensor pool = gaussian_directions(pool_size, size, options.seed, stream);
  const std::vector<double> log_score =
      log_leverage_scores(samples, pool, options.leverage.gram, options.leverage.lambda);
  const double top = *std::max_element(log_score.begin(), log_score.end());
  double mean = 0;
  for (double score : log_score) mean += std::exp(score - top) / static_cast<double>(pool_size);
  const double log_mean = top + std::log(mean);

  Random random(options.seed ^ 0x6c65766572616765u, stream);  // apart from the pool's own draws
  std::vector<std::pair<double, int64_t>> keys;
  for (int64_t i = 0; i < pool_size; ++i) {
    const double gumbel = -std::log(-std::log(1 - random.uniform()));
    keys.emplace_back(-(log_score[static_cast<size_t>(i)] + gumbel), i);
  }
  std::partial_sort(keys.begin(), keys.begin() + count, keys.end());
  Head head = {Tensor({count, size}), Tensor({count})};
  for (int64_t m = 0; m < count; ++m) {
    const int64_t from = keys[static_cast<size_t>(m)].second;
    std::copy_n(std::as_const(pool).data<float>() + from * size, size,
                head.z.data<float>() + m * size);
    head.log_alpha.data<float>()[m] =
        static_cast<float>(log_mean - log_score[static_cast<size_t>(from)]);
  }
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
  return leverage_features(options.leverage.samples(layer, head), count, size, options, stream);
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
