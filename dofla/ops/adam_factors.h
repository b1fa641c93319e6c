// The constants of one step of Adam, worked out once. A plain header: kernels of both devices take
// it.
#pragma once

#include <cstdint>

namespace dofla {

constexpr int64_t kSquaresBlock = 4096;  // elements that are worked on together

struct AdamFactors {
  float beta1, beta2, epsilon;
  float keep;            // 1 − learning rate · weight decay
  float step;            // learning rate / (1 − beta1^t)
  float square_to_root;  // 1 / √(1 − beta2^t)
};

// By what chance moments in BF16 are rounded up or down: element i takes it from mixed(key + first
// + i), the mean from the last 16 bits and the square from the 16 before them.
struct AdamChance {
  uint64_t key = 0;
  int64_t first = 0;
};

}  // namespace dofla
