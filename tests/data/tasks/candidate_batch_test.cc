#include "dofla/data/tasks/candidate_batch.h"

#include <gtest/gtest.h>

namespace dofla {
namespace {

std::vector<const EncodedQuestion*> pointers(const std::vector<EncodedQuestion>& questions) {
  std::vector<const EncodedQuestion*> all;
  for (const EncodedQuestion& question : questions) all.push_back(&question);
  return all;
}

CandidateBatch batch_of(const std::vector<EncodedQuestion>& questions) {
  return candidate_batch(pointers(questions));
}

std::vector<int64_t> numbers(const Tensor& x) {
  return {x.data<int64_t>(), x.data<int64_t>() + x.count()};
}

TEST(CandidateBatch, HasAPlaceForEveryScoredToken) {
  const std::vector<EncodedQuestion> questions = {{{{{1, 2, 3, 4}, 2, 1}, {{1, 5, 6}, 1, 1}}, 0},
                                                  {{{{7, 8}, 1, 1}, {{7, 9}, 1, 1}}, 1}};
  const CandidateBatch batch = batch_of(questions);
  EXPECT_EQ(batch.ids.shape(), Shape({3, 3}));
  const std::vector<int64_t> ids = numbers(batch.ids);
  EXPECT_EQ(std::vector<int64_t>(ids.begin(), ids.begin() + 5),
            (std::vector<int64_t>{1, 2, 3, 1, 5}));
  EXPECT_EQ(ids[6], 7);
  EXPECT_EQ(numbers(batch.places), (std::vector<int64_t>{1, 2, 3, 4, 6, 6}));
  EXPECT_EQ(numbers(batch.targets), (std::vector<int64_t>{3, 4, 5, 6, 8, 9}));
  Tensor losses({6});
  for (int64_t i = 0; i < 6; ++i) losses.data<float>()[i] = static_cast<float>(1 << i);
  EXPECT_EQ(candidate_scores(pointers(questions), losses),
            (std::vector<std::vector<double>>{{-3, -12}, {-16, -32}}));
  EXPECT_THROW(candidate_scores(pointers(questions), Tensor::zeros({7})), std::invalid_argument);
}

TEST(CandidateBatch, ReadsWhatCandidatesShareOnce) {
  const auto shape = [](const EncodedQuestion& question) {
    return batch_of({question}).ids.shape();
  };
  EXPECT_EQ(shape({{{{1, 2, 3}, 2, 1}, {{1, 2, 4}, 2, 1}, {{1, 2, 5}, 2, 1}}, 0}), Shape({1, 2}));
  EXPECT_EQ(shape({{{{1, 2, 3}, 2, 1}, {{1, 2, 4, 5}, 2, 1}}, 0}), Shape({1, 3}));
  EXPECT_EQ(shape({{{{1, 2, 4, 5}, 2, 1}, {{1, 2, 3}, 2, 1}}, 0}), Shape({1, 3}));
  EXPECT_EQ(shape({{{{1, 2, 3, 5}, 2, 1}, {{1, 2, 4, 5}, 2, 1}}, 0}), Shape({2, 3}));
}

TEST(CandidateBatch, MisuseIsRefused) {
  EXPECT_THROW(batch_of({}), std::invalid_argument);
  EXPECT_THROW(batch_of({{{}, 0}}), std::invalid_argument);
  EXPECT_THROW(batch_of({{{{{1, 2}, 2, 1}}, 0}}), std::invalid_argument);
  EXPECT_THROW(batch_of({{{{{1, 2}, 0, 1}}, 0}}), std::invalid_argument);
}

// Each question takes one sequence, here of as many tokens as it is given.
TEST(QuestionBatches, KeepToTheirSizeAndPutLongOnesTogether) {
  std::vector<EncodedQuestion> questions;
  for (const size_t tokens : {9, 2, 3, 40, 2, 10})
    questions.push_back({{{TokenIds(tokens + 1, 1), 1, 1}}, 0});
  std::vector<std::vector<size_t>> lengths;
  for (const auto& batch : question_batches(pointers(questions), 20)) {
    lengths.emplace_back();
    for (const EncodedQuestion* question : batch)
      lengths.back().push_back(question->candidates[0].ids.size() - 1);
  }
  EXPECT_EQ(lengths, (std::vector<std::vector<size_t>>{{2, 2, 3}, {9, 10}, {40}}));
  EXPECT_TRUE(question_batches({}, 20).empty());
}

}  // namespace
}  // namespace dofla
