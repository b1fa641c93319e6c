// Training steps: layerwise from random features, layerwise as a distillation really starts,
// direct, and of all weights.
#include <filesystem>

#include "bench/gpu/sections.h"
#include "dofla/distill/direct_objective.h"
#include "dofla/distill/pair_init.h"
#include "dofla/distill/recipe.h"
#include "dofla/linear/linear_model.h"
#include "dofla/model/next_token_gradient.h"
#include "dofla/model/operations.h"
#include "dofla/pipeline/text.h"
#include "dofla/plan/allocate.h"
#include "dofla/train/optimizer.h"
#include "dofla/train/training_examples.h"

namespace dofla::bench {
namespace {

constexpr int64_t kSteps = 1000;  // of a schedule that no run gets far into

struct Loss {
  const char* name;  // as users give it
  const char* figure;
  FeatureLossKind kind;
};
constexpr Loss kLosses[] = {
    {"l2", "layerwise_l2", FeatureLossKind::kL2},
    {"softmax", "layerwise_softmax", FeatureLossKind::kSoftmax},
    {"attention-mse", "layerwise_attention_mse", FeatureLossKind::kAttentionMse},
};

double step_milliseconds(const Workload& work, const FeatureSet& start, const Objective& objective,
                         const TrainOptions& options, const Tensor& ids) {
  FeatureTrainer trainer(start.clone(), objective, options);
  return milliseconds(work.gpu, 5, [&] { trainer.step(ids); }) / kBatch;
}

// The forward as far as the last layer's queries and keys, and the losses of all layers.
double layerwise_operations(const Workload& work) {
  const AttentionShape shape = attention_shape(work.teacher.config(), kTokens, kFeatures);
  AttentionShape attended = shape;
  attended.layers -= 1;
  return dense_operations_to_heads(work.teacher.config(), kTokens) +
         softmax_attention_operations(attended) + feature_loss_operations(shape);
}

// The first kBatch windows of the built-in text.
std::vector<TokenIds> text_windows(const Workload& work) {
  return read_windows(work.checkpoint,
                      {.files = {fs::path(DOFLA_SOURCE_DIR) / "assets/wikipedia.jsonl.zst"},
                       .length = kTokens,
                       .most = kBatch})
      .all();
}

// On pairs of queries and keys of the teacher, as distill() draws them.
FeatureSet pair_features(const Workload& work, const std::vector<TokenIds>& windows) {
  PairSampler pairs(fixed_plan(identity_of(work.teacher.config()), kFeatures),
                    static_cast<int64_t>(windows.size()), 0);
  for (const TokenIds& window : windows)
    work.teacher.forward(
        to_tensor(window),
        {.state = nullptr, .observer = pairs.observer(), .heads_only = true, .tape = nullptr});
  return pairs.features().to(work.gpu);
}

}  // namespace

void layerwise_section(const Workload& work, Figures& figures) {
  const FeatureSet start = random_features(work);
  for (const Loss& loss : kLosses)
    figures.add({.name = loss.figure,
                 .milliseconds = step_milliseconds(
                     work, start, layerwise_objective(work.teacher, FeatureLossOptions{loss.kind}),
                     {.steps = kSteps, .lr_z = 0.01, .lr_alpha = 0.01}, work.ids),
                 .per = "sample",
                 .operations = layerwise_operations(work)});
}

void pairs_section(const Workload& work, Figures& figures) {
  if (!fs::exists(work.checkpoint.folder() / "tokenizer.json")) {
    for (const Loss& loss : kLosses)
      figures.missing(std::string(loss.figure) + "_pairs",
                      "random weights attend to nothing: needs gpt2-wiki under DOFLA_MODELS");
    return;
  }
  const std::vector<TokenIds> windows = text_windows(work);
  const FeatureSet start = pair_features(work, windows);
  const Tensor ids = ShuffledBatches(windows, kBatch, 0).at(0);
  for (const Loss& loss : kLosses)
    figures.add({.name = std::string(loss.figure) + "_pairs",
                 .milliseconds = step_milliseconds(
                     work, start, layerwise_objective(work.teacher, FeatureLossOptions{loss.kind}),
                     make_recipe({.loss = named<LossKind>(loss.name), .steps = kSteps}).train, ids),
                 .per = "sample",
                 .operations = layerwise_operations(work)});
}

void direct_section(const Workload& work, Figures& figures) {
  const AttentionShape shape = attention_shape(work.teacher.config(), kTokens, kFeatures);
  // Each product with a frozen weight has one gradient; those of linear attention have two.
  const double products = dense_operations(work.teacher.config(), kTokens) +
                          head_operations(work.teacher.config(), kTokens);
  figures.add({.name = "direct_step",
               .milliseconds = step_milliseconds(
                   work, random_features(work), direct_objective(work.checkpoint, work.teacher),
                   {.steps = kSteps, .lr_z = 0.01, .lr_alpha = 0.01}, work.ids),
               .per = "sample",
               .operations = 2 * products + linear_attention_operations(shape) +
                             linear_attention_gradient_operations(shape)});
}

// All weights of the student, in float32 with copies in bf16 to compute with: gradients of as many
// tokens as `dofla finetune` takes at a time, and an optimizer step.
void finetune_section(const Workload& work, Figures& figures) {
  constexpr Trained kEverything = {.weights = true, .features = true};
  const AttentionShape shape = attention_shape(work.teacher.config(), kTokens, kFeatures);
  const double products = dense_operations(work.teacher.config(), kTokens) +
                          head_operations(work.teacher.config(), kTokens);
  Transformer model =
      make_linear_model(work.checkpoint, random_features(work), work.gpu, DType::kF32);
  model.make_trainable();
  const int64_t samples = part_tokens_for(work.gpu) / kTokens;
  const Tensor ids = work.ids.slice(0, samples);
  Gradients gradients = new_gradients(model, kEverything);
  Optimizer optimizer(parameters(model, kEverything), {}, {}, rounded_copies(model, kEverything));
  const double backward =
      milliseconds(work.gpu, 5, [&] { next_token_gradient(model, ids, false, gradients); });
  figures.add({.name = "finetune_gradients",
               .milliseconds = backward / static_cast<double>(samples),
               .per = "sample",
               .operations = 3 * products + linear_attention_operations(shape) +
                             linear_attention_gradient_operations(shape)});
  figures.add({.name = "finetune_optimizer",
               .milliseconds =
                   milliseconds(work.gpu, 5, [&] { optimizer.step(parameters(gradients), 1e-6); }),
               .per = "run"});
}

}  // namespace dofla::bench
