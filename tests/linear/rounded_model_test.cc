#include "dofla/linear/rounded_model.h"

#include <cstring>

#include <gtest/gtest.h>

#include "dofla/checkpoint/fingerprint.h"
#include "dofla/checkpoint/parameters.h"
#include "dofla/linear/linear_model.h"
#include "dofla/model/rounded_weights.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"

namespace dofla {
namespace {

Tensor logits_of(const Transformer& model) {
  const Tensor ids = test::some_ids(model.config(), 2, 9);
  return model.logits(model.forward(ids).reshape({18, model.config().width}));
}

class RoundedModel8 : public testing::TestWithParam<std::string> {
 protected:
  fs::path folder(const char* name) const {
    fs::create_directory(scratch_.path() / name);
    return scratch_.path() / name;
  }

  const Checkpoint source_{test::fixtures() / GetParam()};
  const test::ScratchFolder scratch_;
};

// To the last bit what the model computes with rounded weights in memory, and near what it computes
// with the same weights in float32.
TEST_P(RoundedModel8, ComputesWithTheRoundedWeights) {
  write_rounded_model(folder("int8"), source_);
  const Checkpoint written(scratch_.path() / "int8");
  const Tensor found = logits_of(load_model(written));
  const Checkpoint rounded = with_rounded_weights(source_, 8);
  const Tensor same = logits_of(Transformer(rounded));
  EXPECT_EQ(std::memcmp(found.raw(), same.raw(), static_cast<size_t>(found.bytes())), 0);
  NamedTensors wide;
  for (const std::string& name : rounded.names())
    if (rounded.tensor(name).is_scaled())
      wide.emplace_back(name, rounded.tensor(name).to(DType::kF32));
  const Tensor expected = logits_of(Transformer(source_.with(wide)));
  // Rows are rounded by steps of their largest magnitude / 32767, in four products a layer and the
  // head; the largest is a few times the others.
  const double products = 4 * static_cast<double>(source_.config().layers) + 1;
  const double rounding = products * 8 / 65534 * test::largest(expected);
  test::expect_near(found, expected, test::forward_tolerance(source_.config(), expected) + rounding,
                    "logits");
}

TEST_P(RoundedModel8, AStudentKeepsItsFeaturesAsTheyAre) {
  const FeatureSet features = test::hybrid_features(source_.config());
  write_linear_model(folder("student"), source_, features, Json::object());
  const Checkpoint student(scratch_.path() / "student");
  write_rounded_model(folder("int8"), student);
  const Checkpoint written(scratch_.path() / "int8");
  ASSERT_TRUE(is_linear(written));
  const auto before = to_tensors(load_features(student)),
             after = to_tensors(load_features(written));
  ASSERT_EQ(before.size(), after.size());
  for (size_t i = 0; i < before.size(); ++i)
    EXPECT_EQ(std::memcmp(before[i].second.raw(), after[i].second.raw(),
                          static_cast<size_t>(before[i].second.bytes())),
              0)
        << before[i].first;
  const Tensor found = logits_of(load_model(written));
  const Tensor same = logits_of(load_model(with_rounded_weights(student, 8)));
  EXPECT_EQ(std::memcmp(found.raw(), same.raw(), static_cast<size_t>(found.bytes())), 0);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, RoundedModel8, testing::ValuesIn(test::fixture_models()),
                         [](const auto& name) { return name.param; });

TEST(RoundedModelFolder, IsSmallerAndIsNotRoundedOrTrainedAgain) {
  const Checkpoint source(test::assets() / "wiki-mini");
  const test::ScratchFolder scratch;
  write_rounded_model(scratch.path(), source);
  const Checkpoint written(scratch.path());
  const Parameters before = count_parameters(source), after = count_parameters(written);
  EXPECT_EQ(after.count, before.count);
  EXPECT_EQ(after.dtype, DType::kI8);
  EXPECT_LT(after.bytes, before.bytes * 6 / 10);
  const test::ScratchFolder other;
  test::expect_error([&] { write_rounded_model(other.path(), written); },
                     {scratch.path().string(), "rounded to 8 bits", "round the model"});
  Transformer model = load_model(written);
  EXPECT_THROW(model.make_trainable(), std::invalid_argument);
}

TEST(RoundedModelFolder, WithOtherFactorsIsAnotherModel) {
  const test::ScratchFolder scratch;
  write_rounded_model(scratch.path(), Checkpoint(test::assets() / "wiki-mini"));
  const Checkpoint written(scratch.path());
  const std::string name = "wte.weight";
  const Tensor before = written.tensor(name);
  Tensor factors = before.factors().clone();
  factors.data<float>()[0] *= 2;
  const Checkpoint other = written.with({{name, Tensor::scaled(before, factors)}});
  EXPECT_EQ(fingerprint_of(written), fingerprint_of(Checkpoint(scratch.path())));
  EXPECT_NE(fingerprint_of(written), fingerprint_of(other));
}

// A folder that other tools could take for a plain model would run with whole numbers for weights.
TEST(RoundedModelFolder, HasAConfigurationOfItsOwn) {
  const test::ScratchFolder scratch;
  write_rounded_model(scratch.path(), Checkpoint(test::assets() / "wiki-mini"));
  const fs::path file = scratch.path() / "config.json";
  Json config = load_json(file);
  EXPECT_EQ(config["model_type"], "dofla");
  EXPECT_EQ(config["weights"], "int8");
  EXPECT_FALSE(config.contains("auto_map"));
  config["weights"] = "int5";
  write_whole(file, config.dump());
  test::expect_error([&] { Checkpoint{scratch.path()}; }, {"weights", "expected \"int8\""});
  config.erase("weights");
  write_whole(file, config.dump());
  test::expect_error([&] { Checkpoint{scratch.path()}; }, {"linear_attention", "missing"});
}

}  // namespace
}  // namespace dofla
