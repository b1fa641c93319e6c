// The parts of an engine on their own: sequences read together, batches, and the prefix cache.
#include "dofla/serve/sequence.h"

#include <gtest/gtest.h>

#include "dofla/linear/linear_model.h"
#include "dofla/serve/batch.h"
#include "dofla/serve/token_scores.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

std::vector<Transformer> models() {
  const Checkpoint teacher(test::fixtures() / "llama");
  std::vector<Transformer> all;
  all.emplace_back(teacher);
  for (const FeatureSet& features :
       {test::ragged_features(teacher.config()), test::hybrid_features(teacher.config()),
        test::mixed_features(teacher.config())})
    all.push_back(make_linear_model(teacher, features));
  return all;
}

TEST(ServedSequences, ReadTogetherAreReadAsAlone) {
  for (const Transformer& model : models()) {
    PrefixCache cache(model, 1 << 24, 32), none(model, 0, 32);
    std::vector<std::unique_ptr<Sequence>> alone, together;
    std::vector<Sequence*> all;
    for (int64_t i = 0; i < 3; ++i) {
      GenerationRequest request;
      request.prompt = test::as_vector(test::some_ids(model.config(), 3, 20).slice(i, i + 1));
      alone.push_back(std::make_unique<Sequence>(model, request, nullptr));
      alone.back()->begin(none);
      EXPECT_EQ(alone.back()->read(32, none), 20);
      all.push_back(
          together.emplace_back(std::make_unique<Sequence>(model, request, nullptr)).get());
      EXPECT_TRUE(all.back()->whole());
    }
    Sequence::read_together(all, cache);
    EXPECT_EQ(cache.entries(), 3);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_FALSE(together[i]->reading());
      EXPECT_FALSE(together[i]->whole());
      const Tensor expected = alone[i]->first_logits();
      test::expect_near(together[i]->first_logits(), expected,
                        test::forward_tolerance(model.config(), expected), "logits");
      EXPECT_EQ(together[i]->state().positions(), (std::vector<int64_t>{20}));
      DecodeState a = together[i]->state().fork(), b = alone[i]->state().fork();
      const Tensor next = test::some_ids(model.config(), 1, 2);
      const Tensor wanted = model.forward(next, {.state = &b, .observer = {}});
      test::expect_near(model.forward(next, {.state = &a, .observer = {}}), wanted,
                        test::forward_tolerance(model.config(), wanted), "going on");
    }
  }
}

// Sequences that come and go, past the first room for both sequences and tokens: each gives the
// bits that a decoder of its own gives.
TEST(ServedBatch, GivesEverySequenceWhatItGivesAlone) {
  for (const Transformer& model : models()) {
    Batch batch(model, 9);
    std::vector<std::unique_ptr<Decoder>> alone;  // numbered as in the batch
    const auto join = [&](int64_t tokens) {
      DecodeState state = model.new_state();
      model.forward(test::some_ids(model.config(), 1, tokens), {.state = &state, .observer = {}});
      batch.join(state);
      alone.push_back(std::make_unique<Decoder>(model, std::move(state)));
    };
    const auto leave = [&](int64_t index) {
      batch.leave(index);
      std::swap(alone[static_cast<size_t>(index)], alone.back());
      alone.pop_back();
    };
    const auto step = [&] {
      std::vector<int64_t> ids;
      for (int64_t i = 0; i < batch.size(); ++i) ids.push_back(3 + i);
      const Tensor logits = batch.step(ids);
      for (int64_t i = 0; i < batch.size(); ++i)
        ASSERT_TRUE(
            test::same_bits(logits.slice(i, i + 1), alone[static_cast<size_t>(i)]->step({3 + i})))
            << i << " of " << batch.size();
    };
    join(5);
    step();
    join(1);
    join(9);
    step();
    leave(0);
    step();
    for (int64_t i = 0; i < 7; ++i) join(2 + i);
    step();
    leave(8);
    leave(3);
    step();
    const DecodeState copy = batch.copy(2);
    EXPECT_EQ(copy.positions(), alone[2]->state().positions());
    for (int64_t i = 0; i < std::min<int64_t>(60, model.config().context - 16); ++i) step();
    Decoder from_copy(model, copy.fork());
    from_copy.step({1});
    EXPECT_THROW(batch.leave(7), std::invalid_argument);
    EXPECT_THROW(batch.step({1}), std::invalid_argument);
    while (batch.size() > 0) leave(0);
  }
}

TEST(PrefixCache, KeepsToItsMemoryAndForgetsTheLeastUsed) {
  for (const Transformer& model : models()) {
    const auto snapshot = [&](int64_t first) {
      TokenIds tokens(20, 4);
      tokens[0] = first;
      Snapshot made = {.tokens = tokens, .state = model.new_state()};
      const Tensor hidden =
          model.forward(to_tensor(tokens), {.state = &made.state, .observer = {}});
      made.state = copy_of(model, made.state, 0, 20);
      made.hidden = hidden.reshape({20, model.config().width}).slice(19, 20).clone();
      return made;
    };
    const int64_t bytes = snapshot(1).bytes();
    PrefixCache cache(model, 3 * bytes, 16);
    EXPECT_FALSE(cache.find(snapshot(1).tokens).has_value());
    for (int64_t i = 0; i < 3; ++i) cache.keep_prompt(snapshot(i));
    EXPECT_EQ(cache.entries(), 3);
    EXPECT_EQ(cache.bytes(), 3 * bytes);
    EXPECT_EQ(cache.find(snapshot(0).tokens)->tokens, 20);  // used: 1 goes first
    cache.keep_prompt(snapshot(7));
    EXPECT_EQ(cache.entries(), 3);
    EXPECT_LE(cache.bytes(), 3 * bytes);
    EXPECT_FALSE(cache.find(snapshot(1).tokens).has_value());
    EXPECT_TRUE(cache.find(snapshot(0).tokens).has_value());
    cache.keep_prompt(snapshot(7));  // there already
    EXPECT_EQ(cache.entries(), 3);
    // Longer than what was read, and not between two chunks: not the bits of reading it all. A
    // cache of keys and values can be cut back to the last boundary.
    TokenIds longer = snapshot(0).tokens;
    longer.push_back(9);
    const auto cut = cache.find(longer);
    EXPECT_EQ(cut ? cut->tokens : 0, all_layers_grow(model) ? 16 : 0);
    cache.keep_conversation(snapshot(0), 20);
    EXPECT_EQ(cache.find(longer)->tokens, 20);
    PrefixCache small(model, bytes - 1, 16);
    small.keep_prompt(snapshot(0));
    EXPECT_EQ(small.entries(), 0);
  }
}

TEST(TokenScores, TellTheLikeliestInOrder) {
  const std::vector<float> logits = {0, 2, 1, 2, -1};
  const ServedToken scored = score_token(2, logits, 4);
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x});
  EXPECT_NEAR(*scored.logprob, 1 - std::log(sum), 1e-6);
  ASSERT_EQ(scored.top.size(), 4u);
  for (const auto& [place, id] :
       {std::pair{0, 1}, std::pair{1, 3}, std::pair{2, 2}, std::pair{3, 0}})
    EXPECT_EQ(scored.top[static_cast<size_t>(place)].id, id);
  EXPECT_EQ(scored.top[2].logprob, *scored.logprob);
  EXPECT_EQ(score_token(0, logits, 20).top.size(), 5u);
  EXPECT_TRUE(score_token(0, logits, 0).top.empty());
}

}  // namespace
}  // namespace dofla
