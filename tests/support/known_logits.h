// A fixture model beside the logits that Transformers gave for its inputs.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "dofla/checkpoint/safetensors.h"
#include "dofla/data/tasks/candidate.h"
#include "dofla/model/transformer.h"
#include "tests/support/fixtures.h"
#include "tests/support/tolerance.h"

namespace dofla::test {

// The parameter is the name of a model, one of fixture_models().
class KnownLogits : public testing::TestWithParam<std::string> {
 protected:
  const fs::path folder = fixtures() / GetParam();
  const Checkpoint checkpoint{folder};
  const Transformer model{checkpoint};
  const Safetensors expected{folder / "expected.safetensors"};
  const Tensor logits = expected.tensor("logits").to(DType::kF64);  // [B, T, V] of Transformers

  TokenIds row(int64_t b, int64_t tokens) const {
    const Tensor ids = expected.tensor("input_ids");
    const int64_t* begin = ids.data<int64_t>() + b * ids.size(1);
    return TokenIds(begin, begin + tokens);
  }

  // Σ log softmax(logits)[id] in double precision, from Transformers' own logits.
  double reference_score(int64_t b, const Candidate& candidate) const {
    const int64_t vocabulary = logits.size(2);
    double score = 0;
    for (auto i = static_cast<size_t>(candidate.scored_from); i < candidate.ids.size(); ++i) {
      const double* at =
          logits.data<double>() + (b * logits.size(1) + static_cast<int64_t>(i) - 1) * vocabulary;
      double sum = 0;
      for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(at[v] - at[0]);
      score += at[candidate.ids[i]] - at[0] - std::log(sum);
    }
    return score;
  }

  // What float32 makes of `tokens` log-probabilities added up.
  double tolerance(int64_t tokens) const {
    const ModelConfig& config = model.config();
    return static_cast<double>(tokens) * float32_tolerance(std::max(config.width, config.mlp_width),
                                                           4 * config.layers + 1, largest(logits));
  }
};

}  // namespace dofla::test
