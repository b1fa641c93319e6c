#include "dofla/distill/feature_map.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "dofla/core/error.h"
#include "dofla/core/parallel.h"
#include "dofla/core/random.h"
#include "dofla/dof/leverage.h"

namespace dofla {
namespace {

constexpr std::array<std::string_view, 4> kInitNames = {"iid", "orthogonal", "leverage", "pairs"};

// Gram-Schmidt on the rows of a square matrix, twice over for the digits the first pass loses.
void orthonormalise(std::vector<double>& rows, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    double* row = rows.data() + i * size;
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t j = 0; j < i; ++j) {
        const double* other = rows.data() + j * size;
        double along = 0;
        for (int64_t c = 0; c < size; ++c) along += row[c] * other[c];
        for (int64_t c = 0; c < size; ++c) row[c] -= along * other[c];
      }
    double norm = 0;
    for (int64_t c = 0; c < size; ++c) norm += row[c] * row[c];
    for (int64_t c = 0; c < size; ++c) row[c] /= std::sqrt(norm);
  }
}

// The base-2 van der Corput sequence, which fills (0, 1) evenly at every length.
double radical_inverse(uint64_t index) {
  double value = 0, weight = 0.5;
  for (; index > 0; index >>= 1, weight /= 2) value += static_cast<double>(index & 1) * weight;
  return value;
}

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
      log_leverage_scores(samples, pool, options.gram, options.lambda);
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
  const auto stream = static_cast<uint64_t>(layer * plan.model.heads + head);
  const Tensor flat = Tensor::zeros({count});
  if (options.map == FeatureMap::kDijiang) return {dijiang_directions(count, size), flat};
  if (options.map == FeatureMap::kPerformer || options.init == FeatureInit::kOrthogonal)
    return {orthogonal_directions(count, size, options.seed, stream), flat};
  if (options.init == FeatureInit::kIid)
    return {gaussian_directions(count, size, options.seed, stream), flat};
  require(options.init == FeatureInit::kLeverage, "init_features: pairs come from PairSampler");
  require(static_cast<bool>(options.samples), "init_features: leverage scores need samples");
  return leverage_features(options.samples(layer, head), count, size, options, stream);
}

}  // namespace

std::string_view name(FeatureInit init) {
  return kInitNames[static_cast<size_t>(init)];
}

std::optional<FeatureInit> feature_init_from_name(std::string_view name) {
  for (size_t i = 0; i < kInitNames.size(); ++i)
    if (kInitNames[i] == name) return static_cast<FeatureInit>(i);
  return std::nullopt;
}

FeatureSet init_features(const DimensionPlan& plan, const FeatureOptions& options) {
  FeatureSet set = {.map = options.map, .layers = {}};
  for (const std::vector<int64_t>& counts : plan.heads) {
    Features layer = {.counts = counts,
                      .z = {},
                      .log_alpha = {},
                      .subtract_norm = options.map != FeatureMap::kDijiang};
    layer.z = Tensor({layer.total(), plan.model.head_size});
    layer.log_alpha = Tensor({layer.total()});
    set.layers.push_back(std::move(layer));
  }
  parallel_for(plan.model.layers * plan.model.heads, [&](int64_t i) {
    const int64_t layer = i / plan.model.heads, head = i % plan.model.heads;
    Features& features = set.layers[static_cast<size_t>(layer)];
    const int64_t count = features.counts[static_cast<size_t>(head)];
    const int64_t first = features.offsets()[static_cast<size_t>(head)];
    const Head drawn = init_head(layer, head, count, plan, options);
    std::copy_n(drawn.z.data<float>(), drawn.z.count(),
                features.z.data<float>() + first * plan.model.head_size);
    std::copy_n(drawn.log_alpha.data<float>(), count, features.log_alpha.data<float>() + first);
  });
  return set;
}

Tensor gaussian_directions(int64_t count, int64_t size, uint64_t seed, uint64_t stream) {
  Random random(seed, stream);
  Tensor z({count, size});
  for (int64_t i = 0; i < z.count(); ++i) z.data<float>()[i] = static_cast<float>(random.normal());
  return z;
}

Tensor orthogonal_directions(int64_t count, int64_t size, uint64_t seed, uint64_t stream) {
  Random random(seed, stream);
  Tensor z({count, size});
  std::vector<double> block(static_cast<size_t>(size * size));
  for (int64_t m = 0; m < count; ++m) {
    if (m % size == 0) {
      for (double& x : block) x = random.normal();
      orthonormalise(block, size);
    }
    double square = 0;  // the norm of an independent Gaussian vector
    for (int64_t c = 0; c < size; ++c) square += std::pow(random.normal(), 2);
    for (int64_t c = 0; c < size; ++c)
      z.data<float>()[m * size + c] =
          static_cast<float>(std::sqrt(square) * block[static_cast<size_t>(m % size * size + c)]);
  }
  return z;
}

// Feature m is exp(t_m · (C x)_m) with C the orthonormal DCT-II and t_m a normal quantile; in our
// notation z_m = D^¼ t_m C_m, without the norm term.
Tensor dijiang_directions(int64_t count, int64_t size) {
  Tensor z({count, size});
  const double quarter = std::pow(static_cast<double>(size), 0.25);
  for (int64_t m = 0; m < count; ++m) {
    const int64_t row = m % size;  // blocks are stacked when M > D
    const double weight = normal_quantile(radical_inverse(static_cast<uint64_t>(m) + 1));
    const double scale = std::sqrt((row == 0 ? 1.0 : 2.0) / static_cast<double>(size));
    for (int64_t c = 0; c < size; ++c) {
      const double angle = std::numbers::pi * (static_cast<double>(c) + 0.5) *
                           static_cast<double>(row) / static_cast<double>(size);
      z.data<float>()[m * size + c] =
          static_cast<float>(quarter * weight * scale * std::cos(angle));
    }
  }
  return z;
}

double normal_quantile(double probability) {
  require(probability > 0 && probability < 1, "normal_quantile of {}", probability);
  double low = -40, high = 40;  // the distribution function is monotone: halve until it is pinned
  while (high - low > 1e-15 * std::max(1.0, std::abs(low))) {
    const double middle = (low + high) / 2;
    if (middle == low || middle == high) break;
    (0.5 * std::erfc(-middle / std::numbers::sqrt2) < probability ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace dofla
