// The attention operations and the feature losses alone, once for every layer of the model.
#include <functional>

#include "bench/gpu/sections.h"
#include "dofla/model/operations.h"
#include "dofla/ops/feature_loss.h"
#include "dofla/ops/linear_attention.h"
#include "dofla/ops/softmax_attention.h"

namespace dofla::bench {
namespace {

struct Inputs {
  Tensor q, k, v;   // [kBatch, H, kTokens, D] in BF16
  Tensor gradient;  // [kBatch, kTokens, H, D]
  Features features;
};

Inputs random_inputs(const Workload& work) {
  const ModelConfig& config = work.teacher.config();
  const auto heads = [&](uint64_t seed) {
    return random_bf16({kBatch, config.heads, kTokens, config.head_size}, 1, seed).to(work.gpu);
  };
  return {heads(1), heads(2), heads(3),
          heads(4).reshape({kBatch, kTokens, config.heads, config.head_size}),
          random_features(work).layers.front()};
}

struct Kernel {
  const char* name;
  double operations;
  double head_tensors;  // tensors of q's size that are read or written
  std::function<void(const Inputs&)> run;
};

FeatureLossOptions loss(FeatureLossKind kind) {
  return {.kind = kind};
}

}  // namespace

void kernels_section(const Workload& work, Figures& figures) {
  const AttentionShape shape = attention_shape(work.teacher.config(), kTokens, kFeatures);
  const double softmax = softmax_attention_operations(shape);
  const double linear = linear_attention_operations(shape);
  const double losses = feature_loss_operations(shape);
  // A backward runs the forward again, and is counted with it.
  const Kernel kernels[] = {
      {"softmax_attention", softmax, 4,
       [](const Inputs& x) { softmax_attention(x.q, x.k, x.v, kTokens); }},
      {"softmax_attention_gradients", softmax + softmax_attention_gradient_operations(shape), 12,
       [](const Inputs& x) { softmax_attention_backward(x.q, x.k, x.v, x.gradient); }},
      {"linear_attention", linear, 4,
       [](const Inputs& x) { linear_attention(x.q, x.k, x.v, x.features); }},
      {"linear_attention_gradients", linear + linear_attention_gradient_operations(shape), 12,
       [](const Inputs& x) { linear_attention_backward(x.q, x.k, x.v, x.features, x.gradient); }},
      {"feature_loss_l2", losses, 2,
       [](const Inputs& x) { feature_loss(x.q, x.k, x.features, loss(FeatureLossKind::kL2)); }},
      {"feature_loss_softmax", losses, 2,
       [](const Inputs& x) {
         feature_loss(x.q, x.k, x.features, loss(FeatureLossKind::kSoftmax));
       }},
      {"feature_loss_attention_mse", losses, 2,
       [](const Inputs& x) {
         feature_loss(x.q, x.k, x.features, loss(FeatureLossKind::kAttentionMse));
       }},
  };
  const Inputs inputs = random_inputs(work);
  for (const Kernel& kernel : kernels) {
    const double layers = milliseconds(work.gpu, 10, [&] {
      for (int64_t layer = 0; layer < work.teacher.config().layers; ++layer) kernel.run(inputs);
    });
    figures.add({.name = kernel.name,
                 .milliseconds = layers / kBatch,
                 .per = "sample",
                 .operations = kernel.operations,
                 .bytes = head_bytes(shape, kernel.head_tensors)});
  }
}

}  // namespace dofla::bench
