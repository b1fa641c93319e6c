// One training step, layerwise and direct, as a multiple of the teacher's forward, and the whole
// model's prefill and decoding with softmax and with linear attention.
//   DOFLA_MODELS=folder train_bench     uses folder/gpt2-wiki, else the built-in wiki-mini
#include <fmt/format.h>

#include "bench/support/bench_model.h"
#include "bench/support/measure.h"
#include "dofla/distill/direct_objective.h"
#include "dofla/distill/pair_init.h"
#include "dofla/distill/train.h"
#include "dofla/linear/linear_model.h"
#include "dofla/plan/allocate.h"

namespace dofla::bench {
namespace {

constexpr int64_t kFeatures = 64;

// Prefill of the whole context, then seconds a token at its end.
void time_inference(const char* name, const Transformer& model) {
  const int64_t context = model.config().context, last = 16;
  const Tensor prompt = some_ids(context - last, model.config().vocabulary);
  const Tensor next = some_ids(1, model.config().vocabulary);
  const double prefill = best_seconds(3, [&] {
    DecodeState state = model.new_state();
    model.forward(prompt, {.state = &state, .observer = {}});
  });
  DecodeState state = model.new_state();
  model.forward(prompt, {.state = &state, .observer = {}});
  const double token = best_seconds(static_cast<int>(last), [&] {
    const Tensor hidden = model.forward(next, {.state = &state, .observer = {}});
    model.logits(hidden.reshape({1, model.config().width}));
  });
  fmt::print("{:8} prefill of {} tokens {:7.0f} ms, then {:6.2f} ms a token, state {:7.1f} kB\n",
             name, context - last, 1e3 * prefill, 1e3 * token,
             static_cast<double>(state.bytes()) / 1e3);
}

void run(const fs::path& folder) {
  const Checkpoint checkpoint(folder);
  const Transformer teacher(checkpoint);
  const ModelConfig& config = teacher.config();
  const Tensor ids = some_ids(config.context, config.vocabulary);
  // Of pairs of the teacher's queries and keys, as `distill` begins.
  PairSampler pairs(fixed_plan(identity_of(config), kFeatures), 1, 1);
  teacher.forward(ids, {.observer = pairs.observer()});
  const FeatureSet features = pairs.features();
  const double forward = best_seconds(5, [&] { teacher.forward(ids); });
  fmt::print("model    {}\nteacher  forward of 1x{} without head {:7.0f} ms\n",
             folder.filename().string(), config.context, 1e3 * forward);
  const auto time_step = [&](const char* name, const Objective& objective) {
    FeatureTrainer trainer(features.clone(), objective, {.steps = 100});
    trainer.step(ids);
    const double step = best_seconds(5, [&] { trainer.step(ids); });
    fmt::print("step     {:13} {:7.0f} ms/sample, {:.2f} x the forward\n", name, 1e3 * step,
               step / forward);
  };
  time_step("direct", direct_objective(checkpoint, teacher));
  time_step("softmax", layerwise_objective(teacher, FeatureLossOptions{FeatureLossKind::kSoftmax}));
  time_step("l2", layerwise_objective(teacher, FeatureLossOptions{FeatureLossKind::kL2}));
  time_step("attention-mse",
            layerwise_objective(teacher, FeatureLossOptions{FeatureLossKind::kAttentionMse}));
  time_inference("softmax", teacher);
  time_inference("linear", make_linear_model(checkpoint, features));
}

}  // namespace
}  // namespace dofla::bench

int main() {
  dofla::bench::run(dofla::bench::bench_model());
}
