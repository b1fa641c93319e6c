// The paper-scale teacher. Its middle layers have keys so long that exponents span hundreds: what
// is finite here is finite anywhere.
#include <cmath>

#include <gtest/gtest.h>

#include "dofla/distill/feature_init.h"
#include "dofla/distill/train.h"
#include "dofla/evaluate/next_token.h"
#include "dofla/linear/linear_model.h"
#include "dofla/pipeline/text.h"
#include "dofla/plan/allocate.h"
#include "tests/support/fixtures.h"
#include "tests/support/large_model.h"

namespace dofla {
namespace {

TokenIds first_window(const Checkpoint& checkpoint) {
  return read_windows(checkpoint, {.files = {test::assets() / "wikipedia.jsonl.zst"}, .most = 1})
      .front();
}

void expect_finite(const Tensor& tensor, const std::string& what) {
  for (int64_t i = 0; i < tensor.count(); ++i)
    ASSERT_TRUE(std::isfinite(tensor.data<float>()[i])) << what << " at " << i;
}

TEST(Gpt2Wiki, EveryObjectiveStaysFiniteInEveryLayer) {
  DOFLA_NEEDS_MODEL("gpt2-wiki");
  const Checkpoint checkpoint(test::large_model("gpt2-wiki"));
  const Transformer teacher(checkpoint);
  const Tensor ids = to_tensor(first_window(checkpoint));
  const auto plan = fixed_plan(identity_of(teacher.config()), 64);
  for (const auto kind :
       {FeatureLossKind::kSoftmax, FeatureLossKind::kL2, FeatureLossKind::kAttentionMse}) {
    TrainOptions options;
    options.steps = 2;
    FeatureTrainer trainer(init_features(plan, {}),
                           layerwise_objective(teacher, FeatureLossOptions{kind}), options);
    while (trainer.steps_done() < options.steps) trainer.step(ids);
    EXPECT_TRUE(trainer.history().skipped.empty());
    for (const Features& layer : trainer.features().layers) {
      expect_finite(layer.z, "z");
      expect_finite(layer.log_alpha, "log alpha");
    }
    expect_finite(make_linear_model(checkpoint, trainer.features()).forward(ids), "hidden");
  }
}

TEST(Gpt2Wiki, PredictsText) {
  DOFLA_NEEDS_MODEL("gpt2-wiki");
  const Checkpoint checkpoint(test::large_model("gpt2-wiki"));
  const double loss = next_token_loss(Transformer(checkpoint), first_window(checkpoint)).loss;
  EXPECT_GT(loss, 2.5);  // its validation loss is 3.51; one window varies
  EXPECT_LT(loss, 4.5);
}

}  // namespace
}  // namespace dofla
