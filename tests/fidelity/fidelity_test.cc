// The whole report against closed forms: a student equal to its teacher, and one whose logits are
// twice its teacher's.
#include "dofla/fidelity/fidelity.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dofla/linear/linear_model.h"
#include "tests/reference/linear_attention.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"

namespace dofla {
namespace {

using testing::HasSubstr;

// What the definitions in docs/fidelity.md make of the two distributions of every token, in double.
struct PlainDivergence {
  std::vector<double> losses, teacher_losses, kl, changes, entropies;
  std::vector<std::pair<double, bool>> student_sure, teacher_sure;  // p of the likeliest, and right

  static double mean(const std::vector<double>& of) {
    return std::accumulate(of.begin(), of.end(), 0.0) / static_cast<double>(of.size());
  }
  // At p (n − 1), between two tokens in proportion.
  double percentile(double p) const {
    std::vector<double> sorted = kl;
    std::ranges::sort(sorted);
    const double place = p * static_cast<double>(sorted.size() - 1);
    const size_t below = static_cast<size_t>(std::floor(place)),
                 above = static_cast<size_t>(std::ceil(place));
    return sorted[below] + (place - std::floor(place)) * (sorted[above] - sorted[below]);
  }
  static double calibration_error(const std::vector<std::pair<double, bool>>& tokens) {
    double error = 0;
    for (int bin = 0; bin < 10; ++bin) {
      double sure = 0, right = 0;
      for (const auto& [p, was_right] : tokens)
        if (std::min(static_cast<int>(10 * p), 9) == bin) sure += p, right += was_right;
      error += std::abs(sure - right);
    }
    return error / static_cast<double>(tokens.size());
  }

  // Of one row of the teacher's logits x, with the student's at 2 x: log q = 2 x − log Σ exp(2 x).
  void add(const float* logits, int64_t count, int64_t target) {
    std::vector<double> x(logits, logits + count), twice = x;
    for (double& one : twice) one *= 2;
    const double sum = reference::log_sum_exp(x.data(), count);
    const double sum_of_twice = reference::log_sum_exp(twice.data(), count);
    double of_p = 0, of_q = 0;  // the means of x
    for (const double one : x) {
      of_p += std::exp(one - sum) * one;
      of_q += std::exp(2 * one - sum_of_twice) * one;
    }
    const double y = x[static_cast<size_t>(target)];
    losses.push_back(sum_of_twice - 2 * y);
    teacher_losses.push_back(sum - y);
    kl.push_back(sum_of_twice - sum - of_p);
    changes.push_back(std::exp(2 * y - sum_of_twice) - std::exp(y - sum));
    entropies.push_back(sum_of_twice - 2 * of_q - (sum - of_p));
    const auto top = std::ranges::max_element(x);
    const bool right = top - x.begin() == target;
    student_sure.emplace_back(std::exp(2 * *top - sum_of_twice), right);
    teacher_sure.emplace_back(std::exp(*top - sum), right);
  }

  void expect(const Divergence& found, double tolerance) const {
    std::vector<double> squares;
    for (const double change : changes) squares.push_back(change * change);
    EXPECT_EQ(found.tokens, std::ssize(kl));
    EXPECT_NEAR(found.loss, mean(losses), tolerance);
    EXPECT_NEAR(found.teacher_loss, mean(teacher_losses), tolerance);
    EXPECT_NEAR(found.perplexity_ratio(), std::exp(mean(losses) - mean(teacher_losses)),
                tolerance * found.perplexity_ratio());
    EXPECT_NEAR(found.kl, mean(kl), tolerance);
    for (const auto& [share, value] :
         {std::pair(0.5, found.kl_median), std::pair(0.9, found.kl_90),
          std::pair(0.95, found.kl_95), std::pair(0.99, found.kl_99),
          std::pair(0.999, found.kl_999), std::pair(1.0, found.kl_max)})
      EXPECT_NEAR(value, percentile(share), tolerance) << share;
    EXPECT_NEAR(found.p_change, mean(changes), tolerance);
    EXPECT_NEAR(found.p_change_rms, std::sqrt(mean(squares)), tolerance);
    EXPECT_NEAR(found.entropy_change, mean(entropies), tolerance);
    EXPECT_EQ(found.same_top, 1);  // the order of tokens is the teacher's
    EXPECT_EQ(found.top5_overlap, 1);
    EXPECT_NEAR(found.calibration.error, calibration_error(student_sure), tolerance);
    EXPECT_NEAR(found.teacher_calibration.error, calibration_error(teacher_sure), tolerance);
  }
};

class FidelityOf : public testing::Test {
 protected:
  const Checkpoint checkpoint{test::tests_folder() / "models/stories260K"};
  const ModelConfig& config = checkpoint.config();
  const Tokenizer tokenizer = Tokenizer::load(checkpoint.folder());
  Transformer teacher{checkpoint};
  // The last norm gives twice as much: exact in floating point, and so are the logits.
  Transformer sharper{checkpoint.with({{"model.norm.weight", twice("model.norm.weight")}})};
  const FeatureSet features = test::ragged_features(config);
  Transformer linear = make_linear_model(checkpoint, features);
  const std::vector<TextToCompare> texts = {{"wiki", true, windows(3, 0)},
                                            {"news", false, windows(2, 7)}};

  Tensor twice(const std::string& name) const {
    Tensor tensor = checkpoint.tensor(name).clone();
    for (int64_t i = 0; i < tensor.count(); ++i) tensor.data<float>()[i] *= 2;
    return tensor;
  }

  std::vector<TokenIds> windows(int count, int shift) const {
    std::vector<TokenIds> all;
    for (int w = 0; w < count; ++w) {
      std::string text;
      for (int i = 0; i < 8; ++i)
        text += "Lily saw " + std::to_string((i * i + w + shift) % 17) + " red birds in the park. ";
      all.push_back(tokenizer.encode(text));
      all.back().resize(48);
    }
    return all;
  }

  FidelityReport measure(const std::vector<ModelToCompare>& students) {
    const FidelityInput input = {.teacher = {"teacher", &teacher, {}},
                                 .students = students,
                                 .yardsticks = {},
                                 .texts = texts,
                                 .questions = {}};
    return measure_fidelity(input, tokenizer, {.control_windows = 1, .worst = 4});
  }
};

TEST_F(FidelityOf, AStudentWithTwiceTheLogitsIsWhatTheFormulasSay) {
  PlainDivergence all;
  std::vector<PlainDivergence> of_texts(texts.size());
  double largest = 0;
  for (size_t t = 0; t < texts.size(); ++t)
    for (const TokenIds& ids : texts[t].windows) {
      const auto rows = std::ssize(ids);
      const Tensor logits =
          teacher.logits(teacher.forward(to_tensor(ids)).reshape({rows, config.width}));
      largest = std::max(largest, 2 * test::largest(logits));
      for (int64_t i = 0; i + 1 < rows; ++i)
        for (PlainDivergence* to : {&of_texts[t], &all})
          to->add(logits.data<float>() + i * config.vocabulary, config.vocabulary,
                  ids[static_cast<size_t>(i) + 1]);
    }
  const double tolerance = test::float32_tolerance(1, 2, largest);
  const FidelityReport report = measure({{"sharper", &sharper, {}}});
  const StudentFidelity& found = report.students.front();
  for (size_t t = 0; t < texts.size(); ++t)
    of_texts[t].expect(found.texts[t].divergence, tolerance);
  all.expect(found.all, tolerance);  // by tokens, of which the first text has more
  EXPECT_LT(found.all.entropy_change, -0.05);
  for (const double error : found.layer_error) EXPECT_EQ(error, 0);  // its attention is the same
  EXPECT_EQ(found.worst.size(), 4u);
  EXPECT_NEAR(found.worst[0].kl, found.all.kl_max, 1e-12);
}

TEST_F(FidelityOf, AStudentEqualToItsTeacherIsZeroEverywhere) {
  Transformer copy(checkpoint);
  const FidelityReport report = measure({{"copy", &copy, {}}});
  const StudentFidelity& same = report.students.front();
  for (const TextFidelity& text : same.texts) {
    EXPECT_EQ(text.controls.student_loss, text.controls.teacher_loss);
    for (const auto* slices :
         {&text.where.by_position, &text.where.by_frequency, &text.where.by_distance})
      for (const Slice& slice : *slices) {
        EXPECT_EQ(slice.kl, 0) << slice.name;
        EXPECT_EQ(slice.added, 0) << slice.name;
      }
  }
  EXPECT_EQ(same.all.kl_max, 0);
  EXPECT_EQ(same.all.added(), 0);
  EXPECT_EQ(same.all.p_change_rms, 0);
  EXPECT_EQ(same.all.entropy_change, 0);
  EXPECT_EQ(same.all.calibration.error, same.all.teacher_calibration.error);
  for (const auto& layer : same.head_error)
    for (const double error : layer) EXPECT_EQ(error, 0);
  EXPECT_TRUE(same.worst.empty());
  EXPECT_EQ(same.verdict.grade, Grade::kEqual);
}

// The teacher through some training is a student with softmax attention: shown as a control, and
// beside every other student, whichever was named first.
TEST_F(FidelityOf, ASoftmaxStudentIsAControlOfTheOthers) {
  const FidelityReport report = measure({{"linear", &linear, features}, {"tuned", &sharper, {}}});
  const StudentFidelity &student = report.students[0], &control = report.students[1];
  EXPECT_EQ(student.kind, "linear");
  EXPECT_EQ(control.kind, "softmax");
  EXPECT_FALSE(student.is_softmax());
  EXPECT_TRUE(control.is_softmax());
  EXPECT_TRUE(control.texts[0].controls.controls.measured.empty());
  EXPECT_EQ(control.texts[0].controls.windows, 1);
  EXPECT_GT(control.texts[0].controls.student_loss, 0);
  const auto words = [](const StudentFidelity& of, const std::string& about) {
    for (const Finding& finding : of.verdict.findings)
      if (finding.about == about) return finding.words;
    return std::string("nothing");
  };
  EXPECT_THAT(words(student, "beside softmax attention"),
              HasSubstr(fmt::format("KL {:.3f}; tuned has {:+.3f}, KL {:.3f}", student.all.kl,
                                    control.all.added(), control.all.kl)));
  EXPECT_THAT(words(control, "a control"), HasSubstr("softmax attention in all layers"));
  EXPECT_EQ(words(control, "beside softmax attention"), "nothing");
}

}  // namespace
}  // namespace dofla
