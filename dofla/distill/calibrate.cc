#include "dofla/distill/calibrate.h"

#include <algorithm>

#include "dofla/distill/layer_target.h"
#include "dofla/distributed/agreement.h"

namespace dofla {
namespace {

// log α of every head shifted by one of `shifts`.
Features shifted(const Features& features, const std::vector<double>& shifts) {
  Tensor log_alpha = features.log_alpha.to(Device()).clone();
  const std::vector<int64_t> offsets = features.offsets();
  for (size_t head = 0; head < shifts.size(); ++head)
    for (int64_t m = offsets[head]; m < offsets[head + 1]; ++m)
      log_alpha.data<float>()[m] += static_cast<float>(shifts[head]);
  Features out = features;
  out.log_alpha = log_alpha.to(features.log_alpha.device());
  return out;
}

bool has_weight_to_choose(const FeatureSet& set, size_t layer) {
  return !set.layers[layer].empty() && !exact_keys_of(set.exact, layer).empty();
}

// The squared errors of a set's output: [layers, heads with features, shifts].
class ShiftErrors {
 public:
  explicit ShiftErrors(const FeatureSet& set) {
    for (const Features& layer : set.layers)
      heads_.emplace_back(layer.counts.size() * std::size(kShifts), 0.0);
  }

  void add(size_t layer, const Features& features, const LayerTarget& target) {
    const auto heads = static_cast<size_t>(features.heads());
    for (size_t s = 0; s < std::size(kShifts); ++s) {
      const std::vector<double> errors =
          target.output_errors(shifted(features, std::vector(heads, kShifts[s])));
      for (size_t h = 0; h < errors.size(); ++h)  // query heads that share features lie together
        heads_[layer][h * heads / errors.size() * std::size(kShifts) + s] += errors[h];
    }
  }

  void sum(const Group& group) {
    for (std::vector<double>& layer : heads_) group.sum(layer);
  }

  std::vector<double> best(size_t layer) const {
    std::vector<double> shifts;
    const std::vector<double>& errors = heads_[layer];
    for (auto head = errors.begin(); head != errors.end(); head += std::size(kShifts))
      shifts.push_back(kShifts[std::min_element(head, head + std::size(kShifts)) - head]);
    return shifts;
  }

 private:
  std::vector<std::vector<double>> heads_;
};

}  // namespace

Tensor windows_after(const WindowSet& text, int64_t read, int64_t count, uint64_t seed) {
  return ShuffledBatches(text, count, seed).at((read + count - 1) / count);
}

void calibrate(const Transformer& teacher, const Tensor& ids, std::span<FeatureSet> sets,
               const Progress& progress, const Group& group) {
  std::vector<ShiftErrors> errors(sets.begin(), sets.end());
  const ExactKeySet& exact = common_exact_keys(sets);
  const Share mine = group.share(ids.size(0));
  const auto wanted = [&](int64_t layer) {
    return has_weight_to_choose(sets.front(), static_cast<size_t>(layer));
  };
  const auto weigh = [&](int64_t layer, const LayerTarget& target) {
    const auto at = static_cast<size_t>(layer);
    for (size_t i = 0; i < sets.size(); ++i) errors[i].add(at, sets[i].layers[at], target);
  };
  const Progress pace = at_own_pace(group, progress);
  for (int64_t b = mine.begin; b < mine.end; ++b) {
    each_target(teacher, ids.slice(b, b + 1), exact, OutputLoss{}, wanted, weigh);
    report(pace, {"weigh features", b + 1 - mine.begin, ids.size(0), "windows"});
  }
  for (size_t i = 0; i < sets.size(); ++i) {
    errors[i].sum(group);
    for (size_t layer = 0; layer < sets[i].layers.size(); ++layer)
      if (has_weight_to_choose(sets[i], layer))
        sets[i].layers[layer] = shifted(sets[i].layers[layer], errors[i].best(layer));
  }
}

}  // namespace dofla
