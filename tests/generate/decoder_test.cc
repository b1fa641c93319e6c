// Decoding by steps against forward on the CPU, where both consist of the same operations: softmax
// attention, linear attention, exact keys beside it, and softmax and linear in one model.
#include "dofla/generate/decoder.h"

#include <array>
#include <tuple>

#include <gtest/gtest.h>

#include "dofla/linear/linear_model.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

enum class Kind { kSoftmax, kLinear, kHybrid, kMixed };

class DecoderSteps : public testing::TestWithParam<std::tuple<std::string, Kind>> {
 protected:
  Transformer make_model() const {
    switch (std::get<Kind>(GetParam())) {
      case Kind::kSoftmax:
        return Transformer(teacher);
      case Kind::kLinear:
        return make_linear_model(teacher, test::ragged_features(teacher.config()));
      case Kind::kHybrid:
        return make_linear_model(teacher, test::hybrid_features(teacher.config()));
      default:
        return make_linear_model(teacher, test::mixed_features(teacher.config()));
    }
  }
  // The state after so many tokens, which differ by `which`.
  DecodeState state_after(int64_t tokens, int64_t which) const {
    DecodeState state = model.new_state();
    model.forward(test::some_ids(model.config(), which + 1, tokens).slice(which, which + 1),
                  {.state = &state, .observer = {}});
    return state;
  }
  Tensor logits(const Tensor& hidden) const {  // [B, 1, C] -> [B, V]
    return model.logits(hidden.reshape({hidden.size(0), model.config().width}));
  }

  const Checkpoint teacher{test::fixtures() / std::get<std::string>(GetParam())};
  const Transformer model = make_model();
};

TEST_P(DecoderSteps, GiveTheLogitsOfForward) {
  for (const int64_t batch : {1, 3}) {
    DecodeState state = model.new_state();
    const Tensor prompt = test::some_ids(model.config(), batch, 5);
    model.forward(prompt, {.state = &state, .observer = {}});
    Decoder decoder(model, state.fork(), batch);
    for (int64_t t = 0; t < 4; ++t) {
      const Tensor next = test::some_ids(model.config(), t + batch, 1).slice(t, t + batch);
      const Tensor found = decoder.step(test::as_vector(next));
      const Tensor hidden = model.forward(next, {.state = &state, .observer = {}});
      EXPECT_TRUE(test::same_bits(found, logits(hidden))) << "batch " << batch << " token " << t;
      EXPECT_EQ(decoder.state().positions(), state.positions());
    }
  }
}

TEST_P(DecoderSteps, BeginFromNothing) {
  Decoder decoder(model, model.new_state(), 2);
  const Tensor ids = test::some_ids(model.config(), 2, 1);
  const Tensor expected = logits(model.forward(ids));
  test::expect_near(decoder.step(test::as_vector(ids)), expected,
                    test::forward_tolerance(model.config(), expected), "logits");
}

// Sequences of different lengths in one batch: each gives what it gives alone.
TEST_P(DecoderSteps, TakeSequencesOfDifferentLengths) {
  const std::vector<int64_t> lengths = {5, 1, 9, 5};
  std::vector<DecodeState> alone;
  for (size_t i = 0; i < lengths.size(); ++i)
    alone.push_back(state_after(lengths[i], static_cast<int64_t>(i)));
  DecodeState joined = DecodeState::join({&alone[0], &alone[1], &alone[2], &alone[3]});
  EXPECT_EQ(joined.positions(), lengths);
  // By steps, and by a forward of several tokens.
  Decoder decoder(model, joined.fork(), 4);
  const Tensor more = test::some_ids(model.config(), 4, 3);
  const Tensor at_once = model.forward(more, {.state = &joined, .observer = {}});
  for (int64_t t = 0; t < 3; ++t) {
    std::vector<int64_t> ids;
    for (int64_t b = 0; b < 4; ++b) ids.push_back(more.data<int64_t>()[b * 3 + t]);
    const Tensor found = decoder.step(ids);
    for (int64_t b = 0; b < 4; ++b) {
      Tensor next({1, 1}, DType::kI64);
      next.data<int64_t>()[0] = ids[static_cast<size_t>(b)];
      const Tensor hidden =
          model.forward(next, {.state = &alone[static_cast<size_t>(b)], .observer = {}});
      const Tensor expected = logits(hidden);
      const double tolerance = test::forward_tolerance(model.config(), expected);
      const std::string what = fmt::format("sequence {}, token {}", b, t);
      test::expect_near(found.slice(b, b + 1), expected, tolerance, what);
      const Tensor row = at_once.slice(b, b + 1).reshape({3, model.config().width});
      test::expect_near(logits(row.slice(t, t + 1).reshape({1, 1, model.config().width})), expected,
                        tolerance, what + ", read at once");
    }
  }
  EXPECT_EQ(decoder.state().positions(), (std::vector<int64_t>{8, 4, 12, 8}));
  EXPECT_EQ(joined.positions(), decoder.state().positions());
}

// What is taken out of a batch, or doubled, goes on as if it had been alone.
TEST_P(DecoderSteps, SequencesCanBeTakenOutAndDoubled) {
  const DecodeState a = state_after(6, 0), b = state_after(2, 1);
  const DecodeState joined = DecodeState::join({&a, &b});
  const Tensor next = test::some_ids(model.config(), 1, 1);
  const auto step = [&](const DecodeState& from) {
    DecodeState own = from.fork();
    return model.forward(next, {.state = &own, .observer = {}});
  };
  EXPECT_TRUE(test::same_bits(step(joined.select({1})), step(b)));
  DecodeState twice = joined.select({1, 0, 1});
  EXPECT_EQ(twice.positions(), (std::vector<int64_t>{2, 6, 2}));
  const Tensor both = model.forward(next.repeat(3), {.state = &twice, .observer = {}});
  for (const auto& [row, from] : {std::pair{0, &b}, std::pair{1, &a}, std::pair{2, &b}}) {
    const Tensor expected = step(*from);
    test::expect_near(both.slice(row, row + 1), expected,
                      test::forward_tolerance(model.config(), expected), "hidden");
  }
  EXPECT_EQ(a.positions(), (std::vector<int64_t>{6})) << "the sources have changed";
  EXPECT_THROW(joined.select({2}), std::invalid_argument);
  EXPECT_THROW(joined.select({}), std::invalid_argument);
  EXPECT_THROW(DecodeState::join({}), std::invalid_argument);
  const DecodeState empty = model.new_state();
  EXPECT_THROW(DecodeState::join({&a, &empty}), std::invalid_argument);
}

TEST_P(DecoderSteps, RefuseMisuse) {
  Decoder decoder(model, model.new_state(), 2);
  EXPECT_THROW(decoder.step({1}), std::invalid_argument);
  EXPECT_THROW(decoder.step({1, model.config().vocabulary}), std::invalid_argument);
  EXPECT_THROW(decoder.step({1, -1}), std::invalid_argument);
  EXPECT_EQ(decoder.state().longest(), 0);
  DecodeState of_three = model.new_state();
  model.forward(test::some_ids(model.config(), 3, 1), {.state = &of_three, .observer = {}});
  EXPECT_THROW(
      model.forward(test::some_ids(model.config(), 2, 1), {.state = &of_three, .observer = {}}),
      std::invalid_argument);
  EXPECT_THROW(Decoder(model, std::move(of_three), 2), std::invalid_argument);
}

// Learnt positions end with the context, and a cache is not made for more. Rotary positions and a
// state that does not grow go on.
TEST_P(DecoderSteps, EndWithTheContextWhereTheyMust) {
  const int64_t context = model.config().context;
  const Kind kind = std::get<Kind>(GetParam());
  const bool endless = (kind == Kind::kLinear || kind == Kind::kHybrid) &&
                       !model.weights().position_embedding.defined();
  Decoder decoder(model, model.new_state());
  for (int64_t i = 0; i < context; ++i) decoder.step({i % 5});
  if (!endless) {
    EXPECT_EQ(model.most_tokens(), context);
    EXPECT_THROW(decoder.step({1}), std::invalid_argument);
    return;
  }
  const int64_t bytes = decoder.state().bytes();
  Tensor last;
  for (int64_t i = 0; i < 3; ++i) last = decoder.step({i});
  EXPECT_EQ(decoder.state().bytes(), bytes);
  EXPECT_EQ(decoder.state().longest(), context + 3);
  Tensor all({1, context + 3}, DType::kI64);
  for (int64_t i = 0; i < context + 3; ++i)
    all.data<int64_t>()[i] = i < context ? i % 5 : i - context;
  const Tensor hidden = model.forward(all).reshape({context + 3, model.config().width});
  const Tensor expected = model.logits(hidden.slice(context + 2, context + 3));
  test::expect_near(last, expected, test::forward_tolerance(model.config(), expected), "logits");
}

std::string name_of(const testing::TestParamInfo<DecoderSteps::ParamType>& param) {
  const auto& [model, kind] = param.param;
  constexpr std::array kNames = {"Softmax", "Linear", "Hybrid", "Mixed"};
  return model + kNames.at(static_cast<size_t>(kind));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, DecoderSteps,
                         testing::Combine(testing::ValuesIn(test::fixture_models()),
                                          testing::Values(Kind::kSoftmax, Kind::kLinear,
                                                          Kind::kHybrid, Kind::kMixed)),
                         name_of);

}  // namespace
}  // namespace dofla
