// Decoding by steps against forward on the CPU, where both consist of the same operations.
#include "dofla/linear/decoder.h"

#include <gtest/gtest.h>

#include "dofla/linear/linear_model.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

class DecoderSteps : public testing::TestWithParam<std::string> {
 protected:
  const Checkpoint teacher{test::fixtures() / GetParam()};
  const Transformer model = make_linear_model(teacher, test::ragged_features(teacher.config()));
};

TEST_P(DecoderSteps, GiveTheLogitsOfForward) {
  for (const int64_t batch : {1, 3}) {
    DecodeState state = model.new_state();
    const Tensor prompt = test::some_ids(model.config(), batch, 5);
    model.forward(prompt, {.state = &state, .observer = {}});
    Decoder decoder(model, state.fork(), batch);
    for (int64_t t = 0; t < 4; ++t) {
      const Tensor next = test::some_ids(model.config(), t + batch, 1).slice(t, t + batch);
      const Tensor logits = decoder.step(test::as_vector(next));
      const Tensor hidden = model.forward(next, {.state = &state, .observer = {}});
      EXPECT_TRUE(
          test::same_bits(logits, model.logits(hidden.reshape({batch, model.config().width}))))
          << "batch " << batch << " token " << t;
      EXPECT_EQ(decoder.state().position(), state.position());
    }
  }
}

TEST_P(DecoderSteps, BeginFromNothing) {
  Decoder decoder(model, model.new_state(), 2);
  const Tensor ids = test::some_ids(model.config(), 2, 1);
  const Tensor hidden = model.forward(ids).reshape({2, model.config().width});
  test::expect_near(decoder.step(test::as_vector(ids)), model.logits(hidden),
                    test::forward_tolerance(model.config(), model.logits(hidden)), "logits");
}

TEST_P(DecoderSteps, RefuseMisuse) {
  Decoder decoder(model, model.new_state(), 2);
  EXPECT_THROW(decoder.step({1}), std::invalid_argument);
  EXPECT_THROW(decoder.step({1, model.config().vocabulary}), std::invalid_argument);
  EXPECT_THROW(decoder.step({1, -1}), std::invalid_argument);
  EXPECT_EQ(decoder.state().position(), 0);
  for (int64_t i = 0; i < model.config().context; ++i) decoder.step({1, 2});
  EXPECT_THROW(decoder.step({1, 2}), std::invalid_argument);

  DecodeState of_three = model.new_state();
  model.forward(test::some_ids(model.config(), 3, 1), {.state = &of_three, .observer = {}});
  EXPECT_THROW(Decoder(model, std::move(of_three), 2), std::invalid_argument);

  const Transformer softmax(teacher);
  EXPECT_FALSE(Decoder::takes(softmax));
  EXPECT_THROW(Decoder(softmax, softmax.new_state()), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, DecoderSteps, testing::ValuesIn(test::fixture_models()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace dofla
