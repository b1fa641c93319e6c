// What the Gram matrix K(x, y) = exp(x·y/√D) of the samples of a head is divided by.
#pragma once

namespace dofla {

enum class GramScale {
  kTrace,    // its trace: Σ has trace 1
  kMax,      // its largest entry, which lies on the diagonal
  kSamples,  // J: the operator of the paper's theory, on the empirical measure
  kNone,     // 1: as the paper's algorithm is printed
};

}  // namespace dofla
