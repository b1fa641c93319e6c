// Feature maps: which positive features stand in for the exponential kernel, and where their
// directions z lie before anything is learned.
#pragma once

#include <cstdint>

#include "dofla/core/names.h"
#include "dofla/core/tensor.h"

namespace dofla {

enum class FeatureMap {
  kUntied,     // positive features of key heads, with directions of their own for queries; trained
  kPrf,        // positive random features of query heads, the paper's, to be trained
  kPerformer,  // the same, orthogonal and left as drawn
  kDijiang,    // exp of a weighted discrete cosine transform
};

template <>
struct Names<FeatureMap> {
  static constexpr std::string_view kWhat = "feature map";
  static constexpr std::array kAll = {
      Name{FeatureMap::kUntied, "untied"}, Name{FeatureMap::kPrf, "prf"},
      Name{FeatureMap::kPerformer, "performer"}, Name{FeatureMap::kDijiang, "dijiang"}};
};

// Whether log φ has the term −|x|²/(2√D), without which features do not estimate the kernel.
constexpr bool subtracts_norm(FeatureMap map) {
  return map != FeatureMap::kDijiang;
}

// Where nothing else is said.
inline constexpr FeatureMap kDefaultFeatureMap = FeatureMap::kUntied;

// Whether one may choose where the features start; the baselines have a way of their own.
constexpr bool takes_init(FeatureMap map) {
  return map == FeatureMap::kUntied || map == FeatureMap::kPrf;
}

// Whether features belong to key heads, and one state serves all query heads of a group.
constexpr bool is_untied(FeatureMap map) {
  return map == FeatureMap::kUntied;
}

// The heads of a layer that have features and a state of their own.
constexpr int64_t feature_heads(FeatureMap map, int64_t query_heads, int64_t key_heads) {
  return is_untied(map) ? key_heads : query_heads;
}

// The directions z of one head, [M, D]. A seed and a stream give the same ones wherever they are
// drawn.
Tensor gaussian_directions(int64_t features, int64_t head_size, uint64_t seed, uint64_t stream);
// Orthogonal within blocks of D, with the norms of independent Gaussian vectors.
Tensor orthogonal_directions(int64_t features, int64_t head_size, uint64_t seed, uint64_t stream);
// DiJiang's: nothing is random in them.
Tensor dijiang_directions(int64_t features, int64_t head_size);

// x with P(N(0, 1) ≤ x) = probability, for a probability in (0, 1).
double normal_quantile(double probability);

}  // namespace dofla
