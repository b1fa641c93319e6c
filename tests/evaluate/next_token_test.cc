#include "dofla/evaluate/next_token.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tests/support/fixtures.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

class NextToken : public testing::TestWithParam<std::string> {
 protected:
  const fs::path folder = test::fixtures() / GetParam();
  const Checkpoint checkpoint{folder};
  const Transformer model{checkpoint};
  const Safetensors expected{folder / "expected.safetensors"};

  std::vector<TokenIds> sequences() const {
    const Tensor ids = expected.tensor("input_ids");  // [B, T]
    std::vector<TokenIds> rows;
    for (int64_t b = 0; b < ids.size(0); ++b) {
      const int64_t* row = ids.data<int64_t>() + b * ids.size(1);
      rows.emplace_back(row, row + ids.size(1));
    }
    return rows;
  }

  double tolerance() const {
    const ModelConfig& config = model.config();
    const Tensor logits = expected.tensor("logits");
    return test::float32_tolerance(std::max(config.width, config.mlp_width), 4 * config.layers + 1,
                                   test::largest(logits));
  }
};

NextSequence one_by_one(std::vector<TokenIds> sequences) {
  return [sequences = std::move(sequences), at = size_t{0}](TokenIds& ids) mutable {
    if (at == sequences.size()) return false;
    ids = sequences[at++];
    return true;
  };
}

TEST_P(NextToken, LossEqualsTransformers) {
  const std::vector<TokenIds> rows = sequences();
  const NextTokenLoss result = evaluate_next_token(model, one_by_one(rows));
  const Tensor loss = expected.tensor("loss");
  EXPECT_NEAR(result.loss, loss.data<float>()[0], tolerance());
  EXPECT_DOUBLE_EQ(result.perplexity, std::exp(result.loss));
  EXPECT_EQ(result.sequences.size(), rows.size());
  EXPECT_EQ(result.tokens, static_cast<int64_t>(rows.size() * (rows[0].size() - 1)));
}

TEST_P(NextToken, TheMeanIsOverTokensNotOverSequences) {
  TokenIds ids = sequences()[0];
  const TokenIds start(ids.begin(), ids.begin() + 5);
  const SequenceLoss whole = next_token_loss(model, ids), part = next_token_loss(model, start);
  EXPECT_EQ(part.tokens, 4);
  const NextTokenLoss both = evaluate_next_token(model, one_by_one({ids, start}));
  const auto weighted = [](const SequenceLoss& s) {
    return s.loss * static_cast<double>(s.tokens);
  };
  EXPECT_EQ(both.tokens, whole.tokens + 4);
  EXPECT_DOUBLE_EQ(both.loss,
                   (weighted(whole) + weighted(part)) / static_cast<double>(both.tokens));
}

TEST_P(NextToken, ProgressCountsPredictedTokens) {
  int64_t last = -1;
  evaluate_next_token(model, one_by_one(sequences()), 1234, [&](const ProgressUpdate& update) {
    EXPECT_GT(update.done, last);
    EXPECT_EQ(update.total, 1234);
    last = update.done;
  });
  const auto rows = sequences();
  EXPECT_EQ(last, static_cast<int64_t>(rows.size() * (rows[0].size() - 1)));
}

TEST_P(NextToken, RefusesSequencesThatPredictNothing) {
  EXPECT_THROW(next_token_loss(model, {1}), std::invalid_argument);
  EXPECT_THROW(evaluate_next_token(model, one_by_one({})), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, NextToken, testing::ValuesIn(test::fixture_models()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace dofla
