#include "dofla/fidelity/compare.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "dofla/distill/feature_init.h"
#include "dofla/linear/linear_model.h"
#include "dofla/plan/allocate.h"
#include "tests/reference/linear_attention.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"

namespace dofla {
namespace {

NextSequence once(const Tensor& ids) {
  TokenIds sequence(ids.data<int64_t>(), ids.data<int64_t>() + ids.size(1));
  return [sequence, given = false](TokenIds& out) mutable {
    if (given) return false;
    given = true;
    out = sequence;
    return true;
  };
}

TEST(Compare, AModelAgreesWithItself) {
  const Checkpoint checkpoint(test::fixtures() / "gpt2");
  const Safetensors expected(checkpoint.folder() / "expected.safetensors");
  const Transformer model(checkpoint);
  const Compared same = compare(model, {&model}, once(expected.tensor("input_ids"))).front();
  ASSERT_EQ(same.windows.size(), 1u);
  EXPECT_EQ(std::ssize(same.windows[0]), expected.tensor("input_ids").size(1) - 1);
  for (const TokenStatistics& token : same.windows[0]) {
    EXPECT_TRUE(token.same_top());
    EXPECT_EQ(token.kl, 0);
    EXPECT_EQ(token.teacher_loss, token.student_loss);
  }
  for (const double error : layer_errors(same)) EXPECT_EQ(error, 0);
}

// The teacher's logits are those of Transformers; what is made of them follows the definitions in
// double precision. Two sequences of different length, the first longer
// than one round of logits: the means are over tokens. Whoever swaps teacher and student, or losses
// of theirs, meets a number that says so.
class CompareByDefinition : public testing::Test {
 protected:
  const Checkpoint checkpoint{test::fixtures() / "gpt2"};
  const ModelConfig& config = checkpoint.config();
  const Safetensors expected{checkpoint.folder() / "expected.safetensors"};
  const FeatureSet features = test::ragged_features(config);
  const Transformer teacher{checkpoint};
  const Transformer student = make_linear_model(checkpoint, features);
  const std::vector<TokenIds> sequences = two_sequences();

  std::vector<TokenIds> two_sequences() const {
    const Tensor ids = expected.tensor("input_ids");  // [B, T]
    const int64_t* first = ids.data<int64_t>();
    const int64_t tokens = ids.size(1);
    return {{first, first + tokens}, {first + tokens, first + tokens + tokens / 2}};
  }

  // log p of every token of the vocabulary after token t.
  static std::vector<double> log_probabilities(const float* logits, int64_t count) {
    std::vector<double> out(logits, logits + count);
    const double sum = reference::log_sum_exp(out.data(), count);
    for (double& x : out) x -= sum;
    return out;
  }

  // One sequence's queries, keys and values in one layer of the student, and its features there.
  reference::AttentionCase attention_case(size_t layer, size_t sequence) const {
    Tensor heads[3];
    student.forward(
        to_tensor(sequences[sequence]),
        {.state = nullptr,
         .observer = [&](int64_t at, const Tensor& q, const Tensor& k, const Tensor& v) {
           if (at == static_cast<int64_t>(layer)) heads[0] = q, heads[1] = k, heads[2] = v;
         }});
    const Features& own = features.layers[layer];
    reference::AttentionCase out;
    out.heads = config.heads;
    out.key_heads = config.kv_heads;
    out.tokens = static_cast<int64_t>(sequences[sequence].size());
    out.width = config.head_size;
    out.counts = own.counts;
    out.z = reference::to_doubles(own.z);
    out.log_alpha = reference::to_doubles(own.log_alpha);
    out.q = reference::to_doubles(heads[0]);
    out.k = reference::to_doubles(heads[1]);
    out.v = reference::to_doubles(heads[2]);
    return out;
  }

  static std::vector<double> softmax_attention(const reference::AttentionCase& problem) {
    std::vector<double> out;  // [T, H, D]
    const auto at = [&](int64_t head, int64_t t, int64_t c) {
      const int64_t key_head = head * problem.key_heads / problem.heads;
      return problem.v[static_cast<size_t>((key_head * problem.tokens + t) * problem.width + c)];
    };
    std::vector<std::vector<double>> log_kernel;
    for (int64_t h = 0; h < problem.heads; ++h)
      log_kernel.push_back(reference::log_kernel(problem, 0, h));
    for (int64_t i = 0; i < problem.tokens; ++i)
      for (int64_t h = 0; h < problem.heads; ++h) {
        const double* row = log_kernel[static_cast<size_t>(h)].data() + i * problem.tokens;
        const double sum = reference::log_sum_exp(row, i + 1);
        for (int64_t c = 0; c < problem.width; ++c) {
          double value = 0;
          for (int64_t j = 0; j <= i; ++j) value += std::exp(row[j] - sum) * at(h, j, c);
          out.push_back(value);
        }
      }
    return out;
  }
};

TEST_F(CompareByDefinition, EveryNumberIsWhatItsNameSays) {
  double teacher_loss = 0, student_loss = 0, kl = 0, agree = 0, tokens = 0;
  const Tensor wanted = expected.tensor("logits");  // [B, T, V]
  for (size_t s = 0; s < sequences.size(); ++s) {
    const TokenIds& ids = sequences[s];
    const auto length = static_cast<int64_t>(ids.size());
    const Tensor found =
        student.logits(student.forward(to_tensor(ids)).reshape({length, config.width}));
    for (int64_t t = 0; t + 1 < length; ++t) {
      const int64_t count = config.vocabulary;
      const float* row =
          wanted.data<float>() + (static_cast<int64_t>(s) * wanted.size(1) + t) * count;
      const std::vector<double> p = log_probabilities(row, count);
      const std::vector<double> q = log_probabilities(found.data<float>() + t * count, count);
      const auto target = static_cast<size_t>(ids[static_cast<size_t>(t) + 1]);
      teacher_loss -= p[target];
      student_loss -= q[target];
      for (size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
      agree += std::ranges::max_element(p) - p.begin() == std::ranges::max_element(q) - q.begin();
      ++tokens;
    }
  }
  const Compared result = compare(teacher, {&student}, each_of(sequences)).front();
  ASSERT_EQ(result.windows.size(), 2u);
  TokenStatistics sum;
  double found_tokens = 0, found_agree = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    ASSERT_EQ(result.windows[s].size() + 1, sequences[s].size());
    for (size_t t = 0; t < result.windows[s].size(); ++t) {
      const TokenStatistics& token = result.windows[s][t];
      EXPECT_EQ(token.target, sequences[s][t + 1]);
      sum.teacher_loss += token.teacher_loss;
      sum.student_loss += token.student_loss;
      sum.kl += token.kl;
      found_agree += token.same_top();
      ++found_tokens;
    }
  }
  const double tolerance = test::forward_tolerance(config, wanted);
  EXPECT_EQ(found_tokens, tokens);
  EXPECT_NEAR(sum.teacher_loss / tokens, teacher_loss / tokens, tolerance);
  EXPECT_NEAR(sum.student_loss / tokens, student_loss / tokens, tolerance);
  EXPECT_NEAR(sum.kl / tokens, kl / tokens, tolerance);
  EXPECT_EQ(found_agree, agree);
  // They tell teacher from student, and agreement from none.
  EXPECT_GT(std::abs(teacher_loss - student_loss) / tokens, 10 * tolerance);
  EXPECT_GT(agree, 0);
  EXPECT_LT(agree, tokens);
}

// All students in one pass get what each gets alone.
TEST_F(CompareByDefinition, StudentsDoNotDisturbEachOther) {
  const auto both = compare(teacher, {&teacher, &student}, each_of(sequences));
  const Compared alone = compare(teacher, {&student}, each_of(sequences)).front();
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0].windows[1][3].kl, 0);
  EXPECT_EQ(both[1].windows[1][3].kl, alone.windows[1][3].kl);
  EXPECT_EQ(layer_errors(both[1]), layer_errors(alone));
}

TEST_F(CompareByDefinition, AttentionErrorsAreRelativeToSoftmaxAttention) {
  const std::vector<double> found_errors =
      layer_errors(compare(teacher, {&student}, each_of(sequences)).front());
  ASSERT_EQ(found_errors.size(), features.layers.size());
  for (size_t layer = 0; layer < features.layers.size(); ++layer) {
    double error = 0, signal = 0;
    for (size_t s = 0; s < sequences.size(); ++s) {
      const reference::AttentionCase problem = attention_case(layer, s);
      const std::vector<double> wanted = softmax_attention(problem);
      const std::vector<double> found = reference::linear_attention(problem);
      ASSERT_EQ(wanted.size(), found.size());
      for (size_t i = 0; i < wanted.size(); ++i) {
        signal += wanted[i] * wanted[i];
        error += (found[i] - wanted[i]) * (found[i] - wanted[i]);
      }
    }
    const double relative = std::sqrt(error / signal);
    // Two float32 forward passes, relative to their own size.
    const double tolerance = test::float32_tolerance(std::max(config.width, config.mlp_width),
                                                     5 * config.layers, 1 + relative);
    EXPECT_NEAR(found_errors[layer], relative, tolerance) << "layer " << layer;
    EXPECT_GT(std::abs(relative - error / signal), 10 * tolerance) << "a root that shows";
  }
}

// The coordinates that a student's features are in are folded into its projections: errors of its
// attention are those of its own queries and keys, whatever these coordinates are.
TEST_F(CompareByDefinition, AttentionErrorsDoNotDependOnTheTeachersCoordinates) {
  FeatureSet balanced = features.clone();
  balanced.coordinates = measure_coordinates(teacher, sequences, Coordinates::kBalanced);
  const Transformer folded = make_linear_model(checkpoint, balanced);
  const Checkpoint there = in_coordinates(checkpoint, balanced.coordinates);
  const Transformer same_coordinates(there);
  const auto expected_errors = compare(same_coordinates, {&folded}, each_of(sequences)).front();
  const auto found = compare(teacher, {&folded}, each_of(sequences)).front();
  EXPECT_EQ(layer_errors(found), layer_errors(expected_errors));
}

TEST(Compare, RefusesAnotherVocabulary) {
  const Checkpoint a(test::fixtures() / "gpt2");
  const Checkpoint b(fs::path(DOFLA_SOURCE_DIR) / "tests/models/stories260K");
  const Transformer first(a), second(b);
  const Tensor ids = Tensor::zeros({1, 4}, DType::kI64);
  test::expect_error([&] { compare(first, {&second}, once(ids)); }, {"cannot compare"});
}

}  // namespace
}  // namespace dofla
