// Controls against models that are made for the purpose, one by one.
#include "dofla/evaluate/controls.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dofla/linear/linear_model.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

using testing::HasSubstr;

class ControlsOf : public testing::TestWithParam<std::string> {
 protected:
  const Checkpoint checkpoint{test::fixtures() / GetParam()};
  const ModelConfig& config = checkpoint.config();
  const size_t layers = static_cast<size_t>(config.layers);
  const std::vector<TokenIds> text = {test::as_vector(test::some_ids(config, 1, 60)),
                                      test::as_vector(test::some_ids(config, 1, 41))};
  Transformer teacher{checkpoint};

  Controls controls(const FeatureSet& features) {
    Transformer student = make_linear_model(checkpoint, features);
    return evaluate_controls(student, teacher, features, each_of(text));
  }
  double loss(const FeatureSet& features) const {
    return evaluate_next_token(make_linear_model(checkpoint, features), each_of(text)).loss;
  }
  // The teacher with so many keys in every layer, and nothing else.
  FeatureSet keys_alone(int64_t keys, KeyPolicy policy) const {
    ExactKeys exact;
    exact.keys = keys;
    exact.policy = policy;
    return {.layers = std::vector<Features>(layers), .exact = ExactKeySet(layers, exact)};
  }
  int64_t key_bytes() const { return config.kv_heads * (2 * config.head_size * 2 + 4); }
};

TEST_P(ControlsOf, AHybridStudentAreItsPartsAndTheTeacherInTheSameMemory) {
  FeatureSet features = test::ragged_features(config, FeatureMap::kUntied);
  features.exact.assign(layers, ExactKeys{.keys = 24, .sinks = 2, .recent = 4, .block = 8});
  const Controls found = controls(features);
  EXPECT_TRUE(found.left_out.empty());
  ASSERT_EQ(found.measured.size(), 4u);

  FeatureSet exact = features, linear = features;
  exact.layers.assign(layers, {});
  linear.exact.clear();
  const int64_t bytes = state_bytes(features, config);
  const int64_t keys = bytes / (key_bytes() * config.layers);
  EXPECT_GT(keys, 24);
  const std::vector<std::pair<ControlKind, FeatureSet>> expected = {
      {ControlKind::kExactKeys, exact},
      {ControlKind::kFeatures, linear},
      {ControlKind::kWindow, keys_alone(keys, KeyPolicy::kRecent)},
      {ControlKind::kCache, keys_alone(keys, KeyPolicy::kAttended)}};
  for (size_t i = 0; i < expected.size(); ++i) {
    const Control& control = found.measured[i];
    EXPECT_EQ(control.kind, expected[i].first);
    EXPECT_NEAR(control.loss, loss(expected[i].second), 1e-6) << describe(control);
    EXPECT_EQ(control.state_bytes, state_bytes(expected[i].second, config)) << describe(control);
    EXPECT_LE(control.state_bytes, bytes);
  }
  EXPECT_NE(found.measured[2].loss, found.measured[3].loss);
  EXPECT_EQ(found.measured[2].keys, keys);
  EXPECT_THAT(describe(found.measured[2]), HasSubstr(std::to_string(keys)));
}

TEST_P(ControlsOf, ALinearStudentAreTheTeachersAlone) {
  FeatureSet features = test::ragged_features(config, FeatureMap::kPrf);
  const Controls found = controls(features);
  const int64_t keys = state_bytes(features, config) / (key_bytes() * config.layers);
  if (keys < 24) {  // twice sinks and a block of the defaults
    EXPECT_TRUE(found.measured.empty());
    ASSERT_EQ(found.left_out.size(), 1u);
    EXPECT_THAT(found.left_out[0], HasSubstr("24 are the least"));
    EXPECT_THAT(notes(found, 0), testing::ElementsAre(HasSubstr("left out: ")));
    return;
  }
  ASSERT_EQ(found.measured.size(), 2u);
  EXPECT_EQ(found.measured[0].kind, ControlKind::kWindow);
  EXPECT_EQ(found.measured[1].kind, ControlKind::kCache);
}

// As many keys as the context are the teacher itself, and more are not counted.
TEST_P(ControlsOf, AWindowIsNoLongerThanTheContext) {
  FeatureSet features = test::ragged_features(config);
  features.exact.assign(layers, ExactKeys{.keys = 2 * config.context});
  const Controls found = controls(features);
  const double own = evaluate_next_token(teacher, each_of(text)).loss;
  for (const size_t i : {2, 3}) {
    EXPECT_EQ(found.measured[i].keys, config.context);
    EXPECT_NEAR(found.measured[i].loss, own, 1e-5);
  }
}

// Neither more nor fewer of them, and their memory is not spent on the others.
TEST_P(ControlsOf, SoftmaxLayersStayInAll) {
  FeatureSet features = test::ragged_features(config, FeatureMap::kUntied);
  features.exact.assign(layers, ExactKeys{.keys = 24, .sinks = 2, .recent = 4, .block = 8});
  features.layers[0] = {};
  features.exact[0] = {};
  const Controls found = controls(features);
  ASSERT_EQ(found.measured.size(), 4u);
  const int64_t keys = state_bytes(features, config) / (key_bytes() * (config.layers - 1));
  FeatureSet window = keys_alone(keys, KeyPolicy::kRecent);
  window.exact[0] = {};
  EXPECT_EQ(found.measured[2].keys, keys);
  EXPECT_NEAR(found.measured[2].loss, loss(window), 1e-6);
  FeatureSet exact = features;
  exact.layers.assign(layers, {});
  EXPECT_NEAR(found.measured[0].loss, loss(exact), 1e-6);
}

TEST_P(ControlsOf, BothModelsAreAsTheyWere) {
  const FeatureSet features = test::hybrid_features(config);
  const Tensor ids = test::some_ids(config, 1, 30);
  Transformer student = make_linear_model(checkpoint, features);
  const Tensor before = student.forward(ids), teachers = teacher.forward(ids);
  const auto stopped = [](const ProgressUpdate&) { throw Cancelled("enough"); };
  EXPECT_THROW(evaluate_controls(student, teacher, features, each_of(text), 0, Progress(stopped)),
               Cancelled);
  EXPECT_TRUE(test::same_bits(student.forward(ids), before));
  EXPECT_TRUE(test::same_bits(teacher.forward(ids), teachers));
}

TEST_P(ControlsOf, ASoftmaxModelHasNone) {
  const Controls found = controls({.layers = std::vector<Features>(layers)});
  EXPECT_TRUE(found.measured.empty() && found.left_out.empty());
}

TEST_P(ControlsOf, ATeacherWithoutSoftmaxAttentionGivesNone) {
  FeatureSet features = test::hybrid_features(config);
  teacher = make_linear_model(checkpoint, features);
  const Controls found = controls(features);
  EXPECT_EQ(found.measured.size(), 2u);
  EXPECT_THAT(found.left_out, testing::ElementsAre(HasSubstr("no softmax attention")));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ControlsOf, testing::Values("gpt2", "qwen3"),
                         [](const auto& model) { return model.param; });

TEST(Controls, SayWhenTheLinearPartDoesNotPay) {
  Controls controls;
  controls.measured = {{.kind = ControlKind::kExactKeys, .loss = 3.5},
                       {.kind = ControlKind::kFeatures, .loss = 3.0},
                       {.kind = ControlKind::kWindow, .keys = 9, .loss = 3.25},
                       {.kind = ControlKind::kCache, .keys = 9, .loss = std::nan("")}};
  EXPECT_TRUE(notes(controls, 3.125).empty()) << "features alone are a linear part, too";
  EXPECT_THAT(notes(controls, 3.25),
              testing::ElementsAre("the linear part does not pay here: the student does not beat a "
                                   "window of 9 keys alone"));
  EXPECT_THAT(notes(controls, 4),
              testing::ElementsAre(HasSubstr("its exact keys alone, a window of 9 keys alone")));
}

}  // namespace
}  // namespace dofla
