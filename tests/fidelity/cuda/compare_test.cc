// Teacher and students on a GPU, in batches of many windows, against the CPU, window by window.
#include "dofla/fidelity/compare.h"

#include "dofla/fidelity/divergence.h"
#include "dofla/linear/linear_model.h"
#include "tests/support/model_on_gpu.h"

namespace dofla {
namespace {

class CompareOnGpu : public test::ModelOnGpu {};

TEST_F(CompareOnGpu, HasTheNumbersOfTheCpu) {
  const Checkpoint checkpoint(wiki_mini);
  const Transformer teacher(checkpoint), there(checkpoint, gpu, DType::kF32);
  const Tensor ids = some_ids(checkpoint.config(), 20, 96);
  const FeatureSet features = pair_features(teacher, ids, 8, FeatureMap::kUntied);
  const Transformer student = make_linear_model(checkpoint, features);
  const Transformer student_there = make_linear_model(checkpoint, features, gpu, DType::kF32);
  std::vector<TokenIds> text;  // more than a batch, the last one shorter
  for (int64_t b = 0; b < 20; ++b) {
    const int64_t* row = ids.data<int64_t>() + b * ids.size(1);
    text.emplace_back(row, row + (b == 19 ? 40 : ids.size(1)));
  }
  const auto wanted = compare(teacher, {&student, &teacher}, each_of(text));
  const auto found = compare(there, {&student_there, &there}, each_of(text));
  ASSERT_EQ(found.size(), 2u);
  ASSERT_EQ(found[0].windows.size(), text.size());
  for (size_t w = 0; w < text.size(); ++w) {
    ASSERT_EQ(found[0].windows[w].size() + 1, text[w].size());
    for (size_t t = 0; t < found[0].windows[w].size(); ++t) {
      const TokenStatistics &a = wanted[0].windows[w][t], &b = found[0].windows[w][t];
      EXPECT_EQ(b.target, a.target);
      EXPECT_NEAR(b.teacher_loss, a.teacher_loss, 2e-2);
      EXPECT_NEAR(b.student_loss, a.student_loss, 2e-2);
      EXPECT_NEAR(b.kl, a.kl, 2e-2);
      EXPECT_EQ(found[1].windows[w][t].kl, 0);  // a teacher beside itself
    }
  }
  const auto errors = layer_errors(found[0]), expected = layer_errors(wanted[0]);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(errors[i], expected[i], 1e-2);
  const Divergence a = divergence_of(wanted[0].windows), b = divergence_of(found[0].windows);
  EXPECT_NEAR(b.kl, a.kl, 2e-3);
  EXPECT_NEAR(b.kl_stderr, a.kl_stderr, 2e-3);
  EXPECT_NEAR(b.same_top, a.same_top, 0.01);
}

}  // namespace
}  // namespace dofla
