// Drawing a token from logits of the vocabulary's size, on one thread: microseconds, beside what no
// draw from all tokens can do without, the exponentials of all logits.
#include <fmt/format.h>

#include "bench/support/bench_model.h"
#include "bench/support/measure.h"
#include "dofla/generate/sampler.h"
#include "dofla/model/transformer.h"
#include "dofla/ops/sampling.h"

namespace dofla::bench {
namespace {

constexpr int kRuns = 50;

// What a model gives after some text.
Tensor some_logits() {
  const Checkpoint checkpoint(bench_model());
  const Transformer model(checkpoint);
  const Tensor ids = some_ids(16, model.config().vocabulary);
  const Tensor hidden = model.forward(ids).reshape({16, model.config().width});
  return model.logits(hidden.slice(15, 16));
}

void run() {
  const Tensor logits = some_logits();
  const std::span<const float> row(logits.data<float>(), static_cast<size_t>(logits.count()));
  const float top = row[likeliest_token(row)];
  std::vector<float> weights(row.size());
  const double exponentials =
      best_seconds(kRuns, [&] { sampling_weights(row, top, 0.8, weights); });
  fmt::print("exponentials of {} logits {:7.1f} us\n", row.size(), 1e6 * exponentials);
  const std::pair<const char*, SamplerOptions> kinds[] = {
      {"likeliest", {.temperature = 0}},
      {"top-p 0.95", {.temperature = 0.8, .top_p = 0.95}},
      {"top-k 40", {.temperature = 0.8, .top_k = 40, .top_p = 1}},
      {"of all", {.temperature = 0.8, .top_p = 1}}};
  for (const auto& [name, options] : kinds) {
    Sampler sampler(options);
    const double seconds = best_seconds(kRuns, [&] { sampler.sample(row); });
    fmt::print("{:12} {:7.1f} us, {:.1f} x the exponentials\n", name, 1e6 * seconds,
               seconds / exponentials);
  }
}

}  // namespace
}  // namespace dofla::bench

int main() {
  dofla::bench::run();
}
