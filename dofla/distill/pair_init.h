// Features drawn where the kernel is: at pairs of a query and a key that attend to each other.
//
// K(q, k) is the mean over z ~ N(0, I) of φ(q; z) φ(k; z), and that product peaks at
// z = (q + k) / D^¼. Where queries and keys are long, a Gaussian z never comes near the peak; here
// z is put on it. Drawn so instead of from the Gaussian density, a feature has the weight α ∝
// exp(−|z|²/2), the ratio of that density to a locally flat one. Beside exact keys the factor
// counts, and is chosen by the attention that features are to get (feature_scale.h).
#pragma once

#include <cstdint>
#include <vector>

#include "dofla/core/random.h"
#include "dofla/distill/feature_scale.h"
#include "dofla/features/feature_set.h"
#include "dofla/model/observer.h"
#include "dofla/plan/dimension_plan.h"

namespace dofla {

class PairSampler {
 public:
  // Draws the features of `plan` from `sequences` sequences, about as many from each.
  PairSampler(const DimensionPlan& plan, int64_t sequences, uint64_t seed);

  // Takes its share of pairs from one sequence: a query at random, for features of key heads one of
  // any query head of the group, and one of the keys it sees (those up to the end of its block)
  // with the probability that it attends to it. Call once for every layer of every sequence.
  void offer(int64_t layer, const PairsToLearn& pairs);  // of one sequence
  Observer observer();  // calls offer; must not outlive the sampler

  // Once every sequence was offered. Untied ones start with the same directions on both sides.
  FeatureSet features(FeatureMap map = FeatureMap::kPrf) const;

 private:
  DimensionPlan plan_;
  int64_t sequences_;
  std::vector<Random> random_;            // [layers, heads]
  std::vector<int64_t> offered_;          // sequences, one count a layer
  std::vector<std::vector<float>> rows_;  // z, [layers, heads], each growing to [M, D]
  std::vector<SampledRows> scale_rows_;   // [layers], where there are exact keys
};

}  // namespace dofla
