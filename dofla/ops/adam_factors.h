// The constants of one step of Adam, worked out once. A plain header: kernels of both devices take
// it.
#pragma once

namespace dofla {

struct AdamFactors {
  float beta1, beta2, epsilon;
  float keep;            // 1 − learning rate · weight decay
  float step;            // learning rate / (1 − beta1^t)
  float square_to_root;  // 1 / √(1 − beta2^t)
};

}  // namespace dofla
