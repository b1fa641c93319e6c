// The whole pipeline on a GPU: milliseconds a sample of 1024 tokens, batch 32, 64 features a head.
// The peak is that of a large bf16 product measured here first.
#include "bench/support/bench_model.h"
#include "bench/support/measure.h"
#include "dofla/core/error.h"
#include "dofla/core/random.h"
#include "dofla/distill/feature_map.h"
#include "dofla/distill/train.h"
#include "dofla/linear/decoder.h"
#include "dofla/linear/linear_model.h"
#include "dofla/ops/ridge_traces.h"
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

// What a step reads and writes at least: every weight once, and of each sequence its state.
double decoding_bytes(const Transformer& student, int64_t batch) {
  double weights = 0, state = 0;
  const auto add = [&](const Tensor& tensor) {
    weights += tensor.defined() ? static_cast<double>(tensor.bytes()) : 0;
  };
  for (const LayerWeights& layer : student.weights().layers) {
    for (const Linear& projection : layer.projections) add(projection.weight);
    for (const Linear* linear :
         {&layer.attention_output, &layer.mlp_gate, &layer.mlp_up, &layer.mlp_down})
      add(linear->weight);
  }
  add(student.weights().head.weight);
  for (int64_t i = 0; i < student.config().layers; ++i) {
    const Features& features = *student.attention(i).features();
    add(features.z);
    state += 2 * static_cast<double>(new_linear_attention_state(1, features).bytes());
  }
  return weights + state * static_cast<double>(batch);
}

// Steps of so many sequences side by side, with logits.
void decoding(const Transformer& student, const Device& gpu) {
  constexpr double kBandwidth = 4.0e12;  // of an H200's memory, measured
  constexpr int64_t kTokens = 50;
  for (const int64_t batch : {1, 8, 64}) {
    const std::vector<int64_t> ids(static_cast<size_t>(batch), 11);
    Decoder decoder(student, student.new_state(), batch);
    const double total = milliseconds(gpu, 3, [&] {
      for (int64_t i = 0; i < kTokens; ++i) decoder.step(ids);
    });
    const double step = total / kTokens;
    fmt::print("{:34} {:8.3f} ms/token, {:.0f} % of 4.0 TB/s, {:.0f} tokens/s\n",
               fmt::format("linear decode, batch {}", batch), step,
               100 * decoding_bytes(student, batch) / kBandwidth / (1e-3 * step),
               1e3 * static_cast<double>(batch) / step);
  }
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
  decoding(student, gpu);
}

// All heads of GPT-2 small at one λ, Gram matrices included. The rate counts the operations of a
// Cholesky factor and of its inverse.
void degrees_of_freedom(const Device& gpu) {
  constexpr int64_t kHeads = 144, J = 2048, D = 64;
  Tensor samples({kHeads, J, D});
  Random random(1);
  for (int64_t i = 0; i < samples.count(); ++i)
    samples.data<float>()[i] = static_cast<float>(random.normal());
  const Tensor there = samples.to(gpu);
  const double lambda = 0x1p-8;
  const double time = milliseconds(gpu, 5, [&] {
    ridge_traces(there, GramScale::kTrace, {&lambda, 1});
  });
  constexpr double operations = 2.0 / 3 * kHeads * J * J * J;
  fmt::print("{:34} {:8.1f} ms, {:.1f} TFLOP/s in float64\n", "DoF, 144 heads, J = 2048", time,
             operations / (1e-3 * time) / 1e12);
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
  degrees_of_freedom(gpu);
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
