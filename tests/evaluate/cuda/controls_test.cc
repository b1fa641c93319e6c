// The baselines of a student, on a GPU as on the CPU.
#include "dofla/evaluate/controls.h"

#include "dofla/linear/linear_model.h"
#include "tests/support/model_on_gpu.h"

namespace dofla {
namespace {

using ControlsOnGpu = test::ModelOnGpu;

// Rounding may let another key leave where two are attended alike, which moves the loss a little.
TEST_F(ControlsOnGpu, HaveTheLossesOfTheCpu) {
  const Checkpoint checkpoint(wiki_mini);
  const Tensor ids = some_ids(checkpoint.config(), 2, 200);
  Transformer teacher(checkpoint), there(checkpoint, gpu, DType::kF32);
  FeatureSet features = pair_features(teacher, ids, 8, FeatureMap::kUntied);
  features.exact.assign(features.layers.size(), ExactKeys{.keys = 32});
  Transformer student = make_linear_model(checkpoint, features);
  Transformer student_there = make_linear_model(checkpoint, features, gpu, DType::kF32);
  std::vector<TokenIds> text;
  for (int64_t b = 0; b < 2; ++b) {
    const int64_t* row = ids.data<int64_t>() + b * ids.size(1);
    text.emplace_back(row, row + ids.size(1));
  }
  const Controls expected = evaluate_controls(student, teacher, features, each_of(text));
  const Controls found = evaluate_controls(student_there, there, features, each_of(text));
  ASSERT_EQ(expected.measured.size(), 4u);
  ASSERT_EQ(found.measured.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(found.measured[i].state_bytes, expected.measured[i].state_bytes);
    EXPECT_NEAR(found.measured[i].loss, expected.measured[i].loss, 2e-2)
        << describe(expected.measured[i]);
  }
}

}  // namespace
}  // namespace dofla
