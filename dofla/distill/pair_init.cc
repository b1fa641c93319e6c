#include "dofla/distill/pair_init.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/error.h"
#include "dofla/core/parallel.h"
#include "dofla/ops/heads.h"

namespace dofla {
namespace {

constexpr int64_t kScaleRows = 64;     // queries that the scale of features is taken at
constexpr int64_t kMostRefused = 256;  // pairs of one sequence and head

double product(const float* a, const float* b, int64_t size) {
  double sum = 0;
  for (int64_t c = 0; c < size; ++c) sum += double{a[c]} * b[c];
  return sum;
}

// One of the keys [0, count) with probability softmax(q·k/√D). Where the row has a rest beside
// them, exp(rest) large, that may be drawn instead: −1.
int64_t draw_key(const float* q, const float* keys, int64_t count, int64_t size, const float* rest,
                 Random& random) {
  const double scale = 1 / std::sqrt(static_cast<double>(size));
  std::vector<double> weight(static_cast<size_t>(count));
  for (int64_t j = 0; j < count; ++j)
    weight[static_cast<size_t>(j)] = scale * product(q, keys + j * size, size);
  double top = *std::max_element(weight.begin(), weight.end());
  if (rest != nullptr) top = std::max(top, double{*rest});
  double total = rest == nullptr ? 0 : std::exp(*rest - top);
  const double beside = total;
  for (double& w : weight) total += w = std::exp(w - top);
  double left = random.uniform() * total - beside;
  if (left < 0 && rest != nullptr) return -1;
  for (int64_t j = 0; j + 1 < count; ++j)
    if ((left -= weight[static_cast<size_t>(j)]) < 0) return j;
  return count - 1;
}

}  // namespace

PairSampler::PairSampler(const DimensionPlan& plan, int64_t sequences, uint64_t seed)
    : plan_(plan), sequences_(sequences) {
  require(sequences > 0, "PairSampler: no sequences");
  const int64_t heads = plan.model.layers * plan.heads_in_layer();
  for (int64_t i = 0; i < heads; ++i) random_.emplace_back(seed, static_cast<uint64_t>(i));
  offered_.assign(static_cast<size_t>(plan.model.layers), 0);
  rows_.resize(static_cast<size_t>(heads));
  scale_rows_.resize(static_cast<size_t>(plan.model.layers));
}

void PairSampler::offer(int64_t layer, const PairsToLearn& pairs) {
  const Tensor &q = pairs.q, &k = pairs.k, &rest = pairs.rest;
  const int64_t block = pairs.block;
  const int64_t heads = plan_.heads_in_layer(), size = plan_.model.head_size, tokens = q.size(2);
  const int64_t group = q.size(1) / heads;  // query heads that features are shared by
  require(block >= 1 && tokens % block == 0, "PairSampler: {} tokens in blocks of {}", tokens,
          block);
  const int64_t seen = ++offered_[static_cast<size_t>(layer)];
  if (plan_.heads[static_cast<size_t>(layer)].empty()) return;
  const double quarter = std::pow(static_cast<double>(size), 0.25);
  const Tensor all_queries = contiguous_heads(q).to(Device()).to(DType::kF32);
  const Tensor all_keys = contiguous_heads(k).to(Device()).to(DType::kF32);
  const Tensor all_rest = rest.defined() ? rest.to(Device()) : Tensor();
  if (rest.defined() && seen == 1)
    scale_rows_[static_cast<size_t>(layer)] = sample_rows(pairs, kScaleRows);
  parallel_for(heads, [&](int64_t head) {
    const size_t at = static_cast<size_t>(layer * heads + head);
    const int64_t count = plan_.heads[static_cast<size_t>(layer)][static_cast<size_t>(head)];
    const float* queries = all_queries.data<float>() + head * group * tokens * size;
    const float* keys = all_keys.data<float>() + head / (heads / k.size(1)) * tokens * size;
    const int64_t due = (count * std::min(seen, sequences_) + sequences_ - 1) / sequences_;
    // A pair whose key is exact is no pair for features; a head may have hardly any others.
    int64_t refused = 0;
    while (static_cast<int64_t>(rows_[at].size()) < due * size) {
      const auto i = static_cast<int64_t>(random_[at].below(static_cast<uint64_t>(tokens)));
      const auto of_group =
          group == 1 ? 0 : static_cast<int64_t>(random_[at].below(static_cast<uint64_t>(group)));
      const float* query = queries + (of_group * tokens + i) * size;
      const int64_t visible = (i / block + 1) * block;
      const float* beside = rest.defined()
                                ? all_rest.data<float>() + (head * group + of_group) * tokens + i
                                : nullptr;
      if (beside != nullptr && *beside >= kPaddedRest) continue;
      if (refused >= kMostRefused) beside = nullptr;
      const int64_t drawn = draw_key(query, keys, visible, size, beside, random_[at]);
      if (drawn < 0) {
        ++refused;
        continue;
      }
      const float* key = keys + drawn * size;
      for (int64_t c = 0; c < size; ++c)
        rows_[at].push_back(static_cast<float>((double{query[c]} + key[c]) / quarter));
    }
  });
}

Observer PairSampler::observer() {
  return [this](int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v) {
    offer(layer, pairs_to_learn(q, k, v, exact_keys_of(plan_.exact, static_cast<size_t>(layer))));
  };
}

FeatureSet PairSampler::features(FeatureMap map) const {
  const int64_t heads = plan_.heads_in_layer(), size = plan_.model.head_size;
  FeatureSet set = {.map = map, .layers = {}, .exact = plan_.exact};
  for (int64_t layer = 0; layer < plan_.model.layers; ++layer) {
    require(offered_[static_cast<size_t>(layer)] >= sequences_, "PairSampler: {} of {} sequences",
            offered_[static_cast<size_t>(layer)], sequences_);
    Features features;
    features.counts = plan_.heads[static_cast<size_t>(layer)];
    if (features.empty()) {
      set.layers.emplace_back();
      continue;
    }
    features.z = Tensor({features.total(), size});
    features.log_alpha = Tensor({features.total()});
    float* z = features.z.data<float>();
    float* log_alpha = features.log_alpha.data<float>();
    for (int64_t head = 0; head < heads; ++head) {
      const std::vector<float>& rows = rows_[static_cast<size_t>(layer * heads + head)];
      const int64_t count = features.counts[static_cast<size_t>(head)];
      std::copy_n(rows.data(), count * size, z);
      for (int64_t m = 0; m < count; ++m)
        log_alpha[m] = static_cast<float>(-0.5 * product(z + m * size, z + m * size, size));
      if (const SampledRows& beside = scale_rows_[static_cast<size_t>(layer)]; beside.q.defined()) {
        const int64_t group = beside.q.size(0) / heads;
        const auto missing =
            static_cast<float>(missing_log_scale(beside, head * group, group, z, log_alpha, count));
        for (int64_t m = 0; m < count; ++m) log_alpha[m] += missing;
      }
      z += count * size;
      log_alpha += count;
    }
    set.layers.push_back(is_untied(map) ? untie(features, plan_.model.heads) : std::move(features));
  }
  return set;
}

}  // namespace dofla
