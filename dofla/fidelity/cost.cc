#include "dofla/fidelity/cost.h"

#include <algorithm>

#include "dofla/linear/linear_model.h"

namespace dofla {

Cost measure_cost(const Transformer& model, const FeatureSet& features,
                  const std::vector<TokenIds>& text, int64_t length, int rounds) {
  const ModelConfig& config = model.config();
  Cost cost = {.context_bytes = sequence_bytes(features, config, config.context),
               .grows = growing_layers(features, config) > 0,
               .timed_tokens = length};
  std::ranges::transform(kCostLengths, cost.bytes.begin(),
                         [&](int64_t tokens) { return sequence_bytes(features, config, tokens); });
  TokenTime fastest;
  time_inference(model, text, length);
  for (int round = 0; round < rounds; ++round)
    fastest.keep_faster(time_inference(model, text, length));
  cost.prefill = 1 / fastest.prefill;
  cost.decode = 1 / fastest.decode;
  return cost;
}

int64_t tokens_in(const ModelConfig& teacher, int64_t bytes) {
  return bytes / cache_bytes(teacher, 1) + 1;
}

}  // namespace dofla
