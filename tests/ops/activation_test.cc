#include "dofla/ops/activation.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

namespace dofla {
namespace {

// Massive activations are real: a trained GPT-2 reaches −40 before its GELU, where the exponential
// inside leaves the range of float32.
TEST(Activation, FarFromZeroItIsZeroOrTheIdentity) {
  const float far[] = {-1e4f, -100.0f, -40.0f, 40.0f, 100.0f, 1e4f};
  for (const auto activate : {gelu, gelu_tanh, silu}) {
    Tensor x({6});
    std::copy(std::begin(far), std::end(far), x.data<float>());
    activate(x);
    for (int i = 0; i < 6; ++i)
      EXPECT_NEAR(x.data<float>()[i], std::max(far[i], 0.0f), 1e-6f * std::abs(far[i]));
  }
}

}  // namespace
}  // namespace dofla
