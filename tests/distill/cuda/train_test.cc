// The training of features on a GPU.
#include "dofla/distill/train.h"

#include <cmath>

#include "dofla/distill/direct_objective.h"
#include "dofla/model/next_token_gradient.h"
#include "dofla/ops/heads.h"
#include "dofla/train/optimizer.h"
#include "tests/reference/feature_loss.h"
#include "tests/support/model_on_gpu.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

using reference::AttentionCase;

constexpr FeatureLossKind kKinds[] = {FeatureLossKind::kSoftmax, FeatureLossKind::kL2,
                                      FeatureLossKind::kAttentionMse};

class CudaTraining : public test::ModelOnGpu {
 protected:
  static TrainOptions options_of(FeatureLossKind kind) {
    const bool l2 = kind == FeatureLossKind::kL2;
    return {.steps = 6,
            .lr_z = l2 ? 0.002 : 0.05,
            .lr_alpha = l2 ? 0.02 : 0.2,
            .lr_norm = l2 ? 0.001 : 0.01};
  }

  // The queries and keys of every layer as the teacher shows them, with the layer's features.
  static std::vector<AttentionCase> problems(const Transformer& teacher, const Tensor& ids,
                                             const FeatureSet& features) {
    std::vector<AttentionCase> all;
    const auto look = [&](int64_t layer, const Tensor& q, const Tensor& k, const Tensor&) {
      const Features& f = features.layers[static_cast<size_t>(layer)];
      AttentionCase& c = all.emplace_back();
      c = {.batch = q.size(0),
           .heads = q.size(1),
           .key_heads = k.size(1),
           .tokens = q.size(2),
           .width = q.size(3),
           .counts = f.counts,
           .q = reference::to_doubles(here(contiguous_heads(q))),
           .k = reference::to_doubles(here(contiguous_heads(k))),
           .v = {},
           .z = reference::to_doubles(f.z),
           .log_alpha = reference::to_doubles(f.log_alpha),
           .u = {},
           .norm_weight = {}};
      if (!f.untied()) return;
      c.u = reference::to_doubles(f.u), c.norm_weight = reference::to_doubles(f.norm_weight);
    };
    teacher.forward(ids, {.observer = look, .heads_only = true});
    return all;
  }

  // The first step of all finds out how much memory a step needs.
  void expect_no_more_memory(const std::function<void()>& step, const std::string& what) {
    step();
    const int64_t held = bytes_held(gpu);
    for (int i = 0; i < 4; ++i) step();
    EXPECT_EQ(bytes_held(gpu), held) << what;
  }

  const Checkpoint checkpoint{wiki_mini};
  const Transformer cpu{checkpoint};
  const Tensor ids = some_ids(cpu.config(), 2, 96);
  const FeatureSet start = pair_features(cpu, ids, 16);
  const FeatureSet untied = pair_features(cpu, ids, 16, FeatureMap::kUntied);
};

// By definition and in double precision, of what this very teacher sees: K̂ is made of two bf16
// parts a factor, which is off by 3 · 2^-18 besides the errors of float32.
TEST_F(CudaTraining, BeginsWithTheLossesOfItsTeacher) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const Transformer teacher(checkpoint, gpu, dtype);
    for (const FeatureSet* set : {&start, &untied})
      for (const FeatureLossKind kind : kKinds) {
        const std::vector<AttentionCase> layers = problems(teacher, ids, *set);
        FeatureTrainer trainer(set->to(gpu), layerwise_objective(teacher, FeatureLossOptions{kind}),
                               options_of(kind));
        trainer.step(ids);
        for (size_t layer = 0; layer < layers.size(); ++layer) {
          const auto expected = reference::feature_loss(layers[layer], {kind});
          double sensitivity = 0;
          for (const double x : expected.per_head.sensitivity) sensitivity += x;
          const auto heads = static_cast<double>(layers[layer].heads);
          EXPECT_NEAR(trainer.history().loss[0][layer] * heads, expected.total(),
                      (reference::pair_error(layers[layer]) + 2 * 3 * 0x1p-18) * sensitivity)
              << name(dtype) << ", loss " << int(kind) << " layer " << layer;
        }
      }
  }
}

TEST_F(CudaTraining, LearnsAndGivesTheSameBits) {
  const Transformer teacher(checkpoint, gpu);
  for (const FeatureSet* set : {&start, &untied})
    for (const FeatureLossKind kind : kKinds) {
      FeatureTrainer once(set->clone().to(gpu),
                          layerwise_objective(teacher, FeatureLossOptions{kind}), options_of(kind));
      FeatureTrainer again(set->clone().to(gpu),
                           layerwise_objective(teacher, FeatureLossOptions{kind}),
                           options_of(kind));
      for (int64_t i = 0; i < options_of(kind).steps; ++i) once.step(ids), again.step(ids);
      for (size_t layer = 0; layer < start.layers.size(); ++layer) {
        EXPECT_LT(once.history().loss.back()[layer], once.history().loss.front()[layer])
            << "loss " << int(kind) << " layer " << layer;
        EXPECT_TRUE(test::same_bits(here(once.features().layers[layer].z),
                                    here(again.features().layers[layer].z)));
      }
    }
}

// Every number between two operations is rounded to bf16, by at most 2^-9 of it and to either side,
// twelve times a layer and at either end. The weights are in bf16 in the file already.
TEST_F(CudaTraining, LearnsDirectly) {
  const TrainOptions options = {.steps = 10};
  const Transformer teacher(checkpoint, gpu);
  for (const auto& [set, imitate] :
       {std::pair{&start, false}, {&start, true}, {&untied, false}, {&untied, true}}) {
    const DirectLoss loss = {.imitate = imitate};
    FeatureTrainer here(set->clone(), direct_objective(checkpoint, cpu, loss), options);
    FeatureTrainer there(set->to(gpu), direct_objective(checkpoint, teacher, loss), options);
    here.step(ids);
    for (int64_t i = 0; i < options.steps; ++i) there.step(ids);
    const double expected = here.history().loss[0][0];
    EXPECT_NEAR(there.history().loss[0][0], expected,
                0x1p-9 * std::sqrt(12.0 * static_cast<double>(cpu.config().layers) + 2) * expected);
    EXPECT_LT(there.history().loss.back()[0], there.history().loss.front()[0]);
  }
}

TEST_F(CudaTraining, AsksForNoMoreMemoryAfterItsFirstStep) {
  const TrainOptions options = {.steps = 5};
  const Transformer teacher(checkpoint, gpu);
  for (const FeatureLossKind kind : kKinds) {
    FeatureTrainer trainer(start.to(gpu), layerwise_objective(teacher, FeatureLossOptions{kind}),
                           options);
    expect_no_more_memory([&] { trainer.step(ids); }, fmt::format("loss {}", int(kind)));
  }
  for (const bool recompute : {false, true}) {
    FeatureTrainer trainer(
        start.to(gpu), direct_objective(checkpoint, teacher, {.recompute = recompute}), options);
    expect_no_more_memory([&] { trainer.step(ids); }, fmt::format("direct, {}", recompute));
  }
  Transformer model(checkpoint, gpu, DType::kF32);
  model.make_trainable();
  Optimizer optimizer(parameters(model, {.weights = true}), {});
  const auto step = [&] {
    Gradients gradients = new_gradients(model, {.weights = true});
    next_token_gradient(model, ids, false, gradients);
    optimizer.step(parameters(gradients), 1e-4);
  };
  expect_no_more_memory(step, "all weights");
}

}  // namespace
}  // namespace dofla
