// The whole pipeline on a GPU: milliseconds a sample of 1024 tokens, batch 32, 64 features a head.
// The peak is that of a large bf16 product measured here first.
#include "bench/support/bench_model.h"
#include "bench/support/measure.h"
#include "dofla/core/error.h"
#include "dofla/distill/feature_map.h"
#include "dofla/distill/train.h"
#include "dofla/linear/linear_model.h"
#include "dofla/plan/allocate.h"
#include "dofla/train/direct.h"
#include "dofla/train/next_token_gradient.h"
#include "dofla/train/optimizer.h"

namespace dofla::bench {
namespace {

constexpr int64_t kBatch = 32;
constexpr int64_t kFeatures = 64;

// Of the best of some runs, each ended by waiting for the GPU.
template <class Work>
double milliseconds(const Device& gpu, int runs, const Work& work) {
  work();  // the first one allocates
  return 1e3 * best_seconds(runs, [&] {
           work();
           gpu.synchronize();
         });
}

double peak_rate(const Device& gpu) {
  constexpr int64_t n = 8192;
  const Linear weight = {Tensor::zeros({n, n}, DType::kBF16, gpu), false, {}};
  const Tensor x = Tensor::zeros({n, n}, DType::kBF16, gpu);
  return 2.0 * n * n * n / (1e-3 * milliseconds(gpu, 10, [&] { matmul(x, weight); }));
}

Tensor batch_of(int64_t batch, int64_t tokens, int64_t vocabulary) {
  return some_ids(batch * tokens, vocabulary).reshape({batch, tokens});
}

// Operations of the dense products of one pass over a token, and of causal softmax attention.
double forward_operations(const Transformer& model, int64_t tokens) {
  double weights = 0;
  for (const LayerWeights& layer : model.weights().layers) {
    for (const Linear& projection : layer.projections)
      weights += static_cast<double>(projection.weight.count());
    for (const Linear* linear :
         {&layer.attention_output, &layer.mlp_gate, &layer.mlp_up, &layer.mlp_down})
      if (linear->weight.defined()) weights += static_cast<double>(linear->weight.count());
  }
  const ModelConfig& config = model.config();
  const double t = static_cast<double>(tokens);
  return 2 * weights * t +
         2 * t * t * static_cast<double>(config.layers * config.heads * config.head_size);
}

void print_line(const char* what, double total, double batch) {
  fmt::print("{:34} {:8.3f} ms/sample\n", what, total / batch);
}

void training(const Checkpoint& checkpoint, const Transformer& teacher, const Tensor& ids,
              const Device& gpu) {
  const FeatureSet features =
      init_features(fixed_plan(identity_of(teacher.config()), kFeatures), {});
  const TrainOptions options = {.steps = 1000, .lr_z = 0.01, .lr_alpha = 0.01};
  const auto step = [&](const char* what, const Objective& objective) {
    FeatureTrainer trainer(features.clone().to(gpu), objective, options);
    print_line(what, milliseconds(gpu, 5, [&] { trainer.step(ids); }), kBatch);
  };
  step("layerwise step, l2", layerwise_objective(teacher, {FeatureLossKind::kL2}));
  step("layerwise step, softmax", layerwise_objective(teacher, {FeatureLossKind::kSoftmax}));
  step("layerwise step, attention-mse",
       layerwise_objective(teacher, {FeatureLossKind::kAttentionMse}));
  step("direct step", direct_objective(checkpoint, {.device = gpu}));
}

// A step on all weights in float32, in parts of as many tokens as `dofla finetune` takes.
void fine_tuning(const Checkpoint& checkpoint, int64_t tokens, const Device& gpu) {
  constexpr Trained kWeights = {.weights = true};
  const Transformer model(checkpoint, gpu, DType::kF32);
  const int64_t batch = std::max<int64_t>(1, 2048 / tokens);
  const Tensor ids = batch_of(batch, tokens, model.config().vocabulary);
  Gradients gradients = new_gradients(model, kWeights);
  Optimizer optimizer(parameters(model, kWeights), {});
  const auto differentiate = [&] { next_token_gradient(model, ids, false, gradients); };
  print_line("fine-tuning, gradients of a part", milliseconds(gpu, 5, differentiate), batch);
  const double step = milliseconds(gpu, 5, [&] { optimizer.step(parameters(gradients), 1e-6); });
  fmt::print("{:34} {:8.3f} ms\n", "fine-tuning, optimizer", step);
}

void inference(const Checkpoint& checkpoint, const Transformer& teacher, const Tensor& ids,
               const Device& gpu) {
  const FeatureSet features =
      init_features(fixed_plan(identity_of(teacher.config()), kFeatures), {});
  const Transformer student = make_linear_model(checkpoint, features, gpu);
  print_line("linear prefill", milliseconds(gpu, 5, [&] { student.forward(ids); }), kBatch);
  DecodeState state = student.new_state();
  const Tensor id = some_ids(1, teacher.config().vocabulary);
  constexpr int64_t kTokens = 50;
  const double decode = milliseconds(gpu, 3, [&] {
    for (int64_t i = 0; i < kTokens; ++i) {
      const Tensor hidden = student.forward(id, {.state = &state, .observer = {}});
      student.logits(hidden.reshape({1, teacher.config().width}));
    }
  });
  fmt::print("{:34} {:8.3f} ms/token\n", "linear decode, batch 1", decode / kTokens);
}

void run() {
  const Device gpu = Device::cuda();
  fmt::print("{}\n", gpu.description());
  const double peak = peak_rate(gpu);
  fmt::print("{:34} {:8.0f} TFLOP/s\n", "bf16 product, 8192", peak / 1e12);
  const Checkpoint checkpoint(bench_model());
  const Transformer teacher(checkpoint, gpu);
  const int64_t tokens = std::min<int64_t>(1024, teacher.config().context);
  const Tensor ids = batch_of(kBatch, tokens, teacher.config().vocabulary);
  const double forward = milliseconds(gpu, 5, [&] { teacher.forward(ids); });
  print_line("teacher forward, no head", forward, kBatch);
  fmt::print("{:34} {:8.0f} % of the peak\n", "",
             100 * kBatch * forward_operations(teacher, tokens) / (1e-3 * forward) / peak);
  training(checkpoint, teacher, ids, gpu);
  fine_tuning(checkpoint, tokens, gpu);
  inference(checkpoint, teacher, ids, gpu);
}

}  // namespace
}  // namespace dofla::bench

int main() {
  try {
    dofla::bench::run();
  } catch (const dofla::Error& error) {
    fmt::print("skipped: {}\n", error.what());
  }
}
