#include "dofla/distill/direct_objective.h"

#include <cmath>

#include <gtest/gtest.h>

#include "dofla/distill/pair_init.h"
#include "dofla/distill/train.h"
#include "dofla/evaluate/next_token.h"
#include "dofla/linear/linear_model.h"
#include "dofla/model/next_token_gradient.h"
#include "dofla/plan/allocate.h"
#include "tests/support/fixtures.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

class DirectTraining : public testing::Test {
 protected:
  const Checkpoint checkpoint{fs::path(DOFLA_SOURCE_DIR) / "tests/models/stories260K"};
  const Transformer teacher{checkpoint};
  const Tensor ids = some_text();

  static Tensor some_text() {
    Tensor text({2, 40}, DType::kI64);
    for (int64_t i = 0; i < text.count(); ++i) text.data<int64_t>()[i] = 3 + i * 131 % 500;
    return text;
  }
  FeatureSet start() const {
    PairSampler pairs(fixed_plan(identity_of(teacher.config()), 6), 1, 7);
    teacher.forward(ids.slice(0, 1), {.state = nullptr, .observer = pairs.observer()});
    return pairs.features();
  }
  FeatureTrainer trained(int64_t steps, const TrainOptions& options, bool recompute = false) const {
    FeatureTrainer trainer(start(), direct_objective(checkpoint, teacher, {.recompute = recompute}),
                           options);
    for (int64_t i = 0; i < steps; ++i) trainer.step(ids);
    return trainer;
  }
};

// The loss that is trained is the one that evaluation reports.
TEST_F(DirectTraining, LossIsThatOfTheWholeStudent) {
  const FeatureSet features = start();
  const Transformer student = make_linear_model(checkpoint, features);
  Gradients gradients = new_gradients(student, {.features = true});
  const double loss = next_token_gradient(student, ids, false, gradients);
  double expected = 0;
  for (int64_t b = 0; b < 2; ++b) {
    const int64_t* row = ids.data<int64_t>() + b * 40;
    expected += next_token_loss(student, TokenIds(row, row + 40)).loss / 2;
  }
  EXPECT_NEAR(loss, expected, 1e-5 * expected);
}

// And with the kl loss the divergence, whose least value is 0.
TEST_F(DirectTraining, ImitationIsTheDivergenceFromTheTeacher) {
  FeatureTrainer trainer(start(), direct_objective(checkpoint, teacher, {.imitate = true}),
                         {.steps = 30});
  const Transformer student = make_linear_model(checkpoint, trainer.features().clone());
  double kl = 0;
  for (int64_t b = 0; b < 2; ++b) {
    const auto log_softmax = [&](const Transformer& of) {
      Tensor logits = of.logits(of.forward(ids.slice(b, b + 1)).reshape({40, of.config().width}));
      return logits.to(DType::kF64);
    };
    const Tensor p = log_softmax(teacher), q = log_softmax(student);
    const int64_t words = p.size(1);
    for (int64_t t = 0; t < 40; ++t) {
      const double* a = p.data<double>() + t * words;
      const double* c = q.data<double>() + t * words;
      double sum_a = 0, sum_c = 0;
      for (int64_t w = 0; w < words; ++w) sum_a += std::exp(a[w]), sum_c += std::exp(c[w]);
      for (int64_t w = 0; w < words; ++w)
        kl += std::exp(a[w]) / sum_a * ((a[w] - std::log(sum_a)) - (c[w] - std::log(sum_c))) / 80;
    }
  }
  for (int i = 0; i < 30; ++i) trainer.step(ids);
  EXPECT_NEAR(trainer.history().loss.front()[0], kl, 1e-4 * kl);
  EXPECT_LT(trainer.history().loss.back()[0], 0.9 * kl);
}

TEST_F(DirectTraining, FallsAndTellsOneLoss) {
  const FeatureTrainer trainer = trained(30, {.steps = 30});
  const TrainingHistory& history = trainer.history();
  ASSERT_EQ(history.loss.front().size(), 1u);
  EXPECT_LT(history.loss.back()[0], history.loss.front()[0]);
  EXPECT_TRUE(history.skipped.empty());
}

TEST_F(DirectTraining, RecomputingChangesNoBit) {
  const FeatureTrainer kept = trained(3, {.steps = 3}), again = trained(3, {.steps = 3}, true);
  for (size_t i = 0; i < kept.features().layers.size(); ++i) {
    EXPECT_TRUE(test::same_bits(kept.features().layers[i].z, again.features().layers[i].z));
    EXPECT_TRUE(
        test::same_bits(kept.features().layers[i].log_alpha, again.features().layers[i].log_alpha));
  }
}

TEST_F(DirectTraining, AResumedRunEndsInTheSameBits) {
  const test::ScratchFolder scratch;
  const fs::path file = scratch.path() / "run.training";
  const Json run = {{"loss", "direct"}};
  const FeatureTrainer whole = trained(4, {.steps = 4});
  trained(2, {.steps = 4}).save(file, run);
  FeatureTrainer resumed(start(), direct_objective(checkpoint, teacher), {.steps = 4});
  resumed.restore(file, run);
  while (resumed.steps_done() < 4) resumed.step(ids);
  EXPECT_EQ(resumed.history().loss, whole.history().loss);
  for (size_t i = 0; i < whole.features().layers.size(); ++i)
    EXPECT_TRUE(test::same_bits(resumed.features().layers[i].z, whole.features().layers[i].z));
}

// DiJiang: the directions stay, only their weights learn.
TEST_F(DirectTraining, ALearningRateOfZeroLeavesTheDirections) {
  const FeatureTrainer trainer = trained(3, {.steps = 3, .lr_z = 0, .lr_alpha = 0.1});
  const FeatureSet before = start();
  EXPECT_TRUE(test::same_bits(trainer.features().layers[0].z, before.layers[0].z));
  EXPECT_FALSE(test::same_bits(trainer.features().layers[0].log_alpha, before.layers[0].log_alpha));
}

}  // namespace
}  // namespace dofla
