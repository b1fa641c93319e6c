// Forward, decoding and memory of a softmax model, each against this machine's own ceiling.
//   DOFLA_MODELS=folder model_bench     uses folder/gpt2-wiki, else the built-in wiki-mini
#include <fmt/format.h>

#include "bench/support/bench_model.h"
#include "bench/support/measure.h"
#include "dofla/model/transformer.h"
#include "dofla/ops/cpu/tile_products.h"
#include "dofla/ops/cross_entropy.h"

namespace dofla::bench {
namespace {

std::vector<Tensor> matrices(const Weights& weights) {
  std::vector<Tensor> all = {weights.head.weight};
  for (const LayerWeights& layer : weights.layers) {
    for (const Linear& projection : layer.projections) all.push_back(projection.weight);
    for (const Linear* linear :
         {&layer.attention_output, &layer.mlp_gate, &layer.mlp_up, &layer.mlp_down})
      if (linear->weight.defined()) all.push_back(linear->weight);
  }
  return all;
}

// Floating-point operations a second of a large dense layer with weights of bf16.
double dense_rate() {
  constexpr int64_t n = 2048, rows = 1024;
  const Linear linear = {.weight = Tensor::zeros({n, n}, DType::kBF16), .bias = {}};
  const Tensor x = Tensor::zeros({rows, n});
  return 2.0 * n * n * rows / best_seconds(20, [&] { matmul(x, linear); });
}

void run(const fs::path& folder) {
  const Checkpoint checkpoint(folder);
  const Transformer model(checkpoint);
  const ModelConfig& config = model.config();
  const int64_t tokens = config.context;
  int64_t elements = 0, weight_bytes = 0;
  std::vector<std::span<const std::byte>> weight_memory;
  for (const Tensor& matrix : matrices(model.weights())) {
    elements += matrix.count();
    weight_bytes += matrix.bytes();
    weight_memory.emplace_back(static_cast<const std::byte*>(matrix.raw()),
                               static_cast<size_t>(matrix.bytes()));
  }
  const Tensor ids = some_ids(tokens, config.vocabulary);
  const Tensor targets = ids.reshape({tokens});

  // The forward is the loss of a whole window: body, head and cross-entropy of every token.
  const auto forward = [&] {
    cross_entropy(model.forward(ids).reshape({tokens, config.width}), model.weights().head,
                  targets);
  };
  forward();
  const int64_t peak = peak_bytes();
  const double forward_seconds = best_seconds(5, forward);
  const double rate = sgemm_rate();
  const double dense = dense_rate();
  const double products = 2.0 * static_cast<double>(elements * tokens);
  const double scores = 2.0 * static_cast<double>(config.layers * config.heads * config.head_size *
                                                  tokens * (tokens + 1));
  const double achieved = (products + scores) / forward_seconds;

  DecodeState state = model.new_state();
  const Tensor prompt = some_ids(16, config.vocabulary), next = some_ids(1, config.vocabulary);
  model.logits(
      model.forward(prompt, {.state = &state, .observer = {}}).reshape({16, config.width}));
  const double token_seconds = best_seconds(40, [&] {
    model.logits(model.forward(next, {.state = &state, .observer = {}}).reshape({1, config.width}));
  });
  // The ceiling of decoding is the same machine reading the same bytes and doing nothing else.
  const double bandwidth = static_cast<double>(weight_bytes) / read_seconds(weight_memory);

  fmt::print("model                 {}\n", folder.filename().string());
  fmt::print("sgemm                 {:8.1f} GFLOP/s on {} threads\n", rate / 1e9, thread_count());
  fmt::print("dense layers          {:8.1f} GFLOP/s, {:.2f} x sgemm: {}\n", dense / 1e9,
             dense / rate, cpu::has_tile_products() ? "tiles of bf16" : "no tiles of bf16");
  fmt::print("forward 1x{:<5}       {:8.1f} GFLOP/s, {:.0f} % of sgemm ({:.0f} ms)\n", tokens,
             achieved / 1e9, 100 * achieved / rate, 1e3 * forward_seconds);
  fmt::print("read bandwidth        {:8.1f} GB/s\n", bandwidth / 1e9);
  fmt::print("decode                {:8.1f} GB/s, {:.0f} % of bandwidth ({:.1f} ms a token)\n",
             static_cast<double>(weight_bytes) / token_seconds / 1e9,
             100 * static_cast<double>(weight_bytes) / token_seconds / bandwidth,
             1e3 * token_seconds);
  fmt::print("peak memory           {:8.1f} MB, weights {:.1f} MB, {:+.0f} %\n",
             static_cast<double>(peak) / 1e6, static_cast<double>(weight_bytes) / 1e6,
             100.0 * static_cast<double>(peak - weight_bytes) / static_cast<double>(weight_bytes));
}

}  // namespace
}  // namespace dofla::bench

int main() {
  dofla::bench::run(dofla::bench::bench_model());
}
