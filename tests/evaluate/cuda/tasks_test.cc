// Questions on a GPU, which reads many of them at once, against the CPU, which takes one by one.
#include "dofla/evaluate/tasks.h"

#include <algorithm>

#include "dofla/core/random.h"
#include "tests/support/fixtures.h"
#include "tests/support/gpu.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

class CudaTasks : public test::OnGpu {
 protected:
  // Two to four candidates of up to twenty tokens that begin alike.
  static std::vector<EncodedQuestion> some_questions(const ModelConfig& config) {
    Random random(3);
    const auto tokens = [&](size_t count) {
      TokenIds ids(1 + random.below(count));
      for (int64_t& id : ids)
        id = static_cast<int64_t>(random.below(static_cast<size_t>(config.vocabulary)));
      return ids;
    };
    std::vector<EncodedQuestion> questions(30);
    for (EncodedQuestion& question : questions) {
      const TokenIds context = tokens(10);
      question.candidates.resize(2 + random.below(3));
      question.gold = static_cast<int64_t>(random.below(question.candidates.size()));
      for (Candidate& candidate : question.candidates) {
        const TokenIds own = tokens(10);
        candidate.scored_from = std::ssize(context);
        candidate.ids = context;
        candidate.ids.insert(candidate.ids.end(), own.begin(), own.end());
      }
    }
    return questions;
  }
};

TEST_F(CudaTasks, AreAnsweredAsOnTheCpu) {
  for (const std::string& fixture : test::fixture_models()) {
    const Checkpoint checkpoint(test::fixtures() / fixture);
    const Safetensors expected(test::fixtures() / fixture / "expected.safetensors");
    const Transformer cpu(checkpoint), there(checkpoint, gpu, DType::kF32);
    const ModelConfig& config = cpu.config();
    const std::vector<EncodedQuestion> questions = some_questions(config);
    std::vector<const EncodedQuestion*> all;
    for (const EncodedQuestion& question : questions) all.push_back(&question);
    // What float32 makes of ten log-probabilities added up.
    const double tolerance = 10 * test::float32_tolerance(std::max(config.width, config.mlp_width),
                                                          4 * config.layers + 1,
                                                          test::largest(expected.tensor("logits")));
    const std::vector<std::vector<double>> scores = score_candidates(there, all);
    int64_t right = 0;
    for (size_t q = 0; q < questions.size(); ++q) {
      const std::vector<double> wanted = score_candidates(cpu, questions[q]);
      ASSERT_EQ(scores[q].size(), wanted.size());
      for (size_t i = 0; i < wanted.size(); ++i)
        EXPECT_NEAR(scores[q][i], wanted[i], tolerance) << fixture << ", question " << q;
      right += std::ranges::max_element(scores[q]) - scores[q].begin() == questions[q].gold;
    }
    const TaskResult result = evaluate_task(there, questions);
    EXPECT_EQ(result.questions, 30);
    EXPECT_DOUBLE_EQ(result.acc.mean, static_cast<double>(right) / 30) << fixture;
  }
}

}  // namespace
}  // namespace dofla
