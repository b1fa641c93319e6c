// Feature maps: which positive features stand in for the exponential kernel, and where their
// directions z lie before anything is learned.
#pragma once

#include <cstdint>

#include "dofla/core/names.h"
#include "dofla/core/tensor.h"

namespace dofla {

enum class FeatureMap {
  kPrf,        // positive random features, to be trained
  kPerformer,  // the same, orthogonal and left as drawn
  kDijiang,    // exp of a weighted discrete cosine transform
};

template <>
struct Names<FeatureMap> {
  static constexpr std::string_view kWhat = "feature map";
  static constexpr std::array kAll = {Name{FeatureMap::kPrf, "prf"},
                                      Name{FeatureMap::kPerformer, "performer"},
                                      Name{FeatureMap::kDijiang, "dijiang"}};
};

// Whether log φ has the term −|x|²/(2√D), without which features do not estimate the kernel.
constexpr bool subtracts_norm(FeatureMap map) {
  return map != FeatureMap::kDijiang;
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
