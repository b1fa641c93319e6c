#include "dofla/evaluate/tasks.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "dofla/core/error.h"
#include "dofla/distributed/agreement.h"
#include "dofla/model/finite.h"
#include "dofla/ops/cross_entropy.h"
#include "dofla/ops/embedding.h"

namespace dofla {
namespace {

// A GPU is busy with so many tokens at once. On a CPU it pays to read only once what the candidates
// of a question have in common.
constexpr int64_t kGpuTokens = 16384;

int64_t length(const Candidate& candidate) {
  return static_cast<int64_t>(candidate.ids.size());
}

// Hidden states of all candidates of a question.
struct CandidateStates {
  int64_t shared = 0;  // the first tokens, which all candidates have in common
  Tensor common;       // [1, shared, C]
  Tensor own;          // [N, T, C] of the tokens after them; undefined where there are none
};

// The tokens from `begin` on that a model has to read, [N, T]. The last one of a candidate is only
// predicted. All rows are as long as the longest: what follows a candidate's end never reaches
// back.
Tensor ids_to_read(const std::vector<Candidate>& candidates, int64_t begin) {
  int64_t longest = 0;
  for (const Candidate& candidate : candidates)
    longest = std::max(longest, length(candidate) - 1 - begin);
  if (longest == 0) return {};
  Tensor ids({static_cast<int64_t>(candidates.size()), longest}, DType::kI64);
  int64_t* row = ids.data<int64_t>();
  for (const Candidate& candidate : candidates) {
    std::fill_n(row, longest, candidate.ids.back());
    std::copy(candidate.ids.begin() + begin, candidate.ids.end() - 1, row);
    row += longest;
  }
  return ids;
}

CandidateStates read_candidates(const Transformer& model, const EncodedQuestion& question) {
  CandidateStates result;
  result.shared = shared_tokens(question);
  DecodeState state = model.new_state();
  if (result.shared > 0) {
    const TokenIds& ids = question.candidates.front().ids;
    result.common = model.forward(to_tensor(TokenIds(ids.begin(), ids.begin() + result.shared)),
                                  {.state = &state, .observer = {}});
  }
  const Tensor ids = ids_to_read(question.candidates, result.shared);
  if (ids.defined()) {
    DecodeState copies = state.fork(ids.size(0));
    result.own = model.forward(ids, {.state = &copies, .observer = {}});
  }
  return result;
}

// Scored tokens whose states stand in one tensor.
class ScoredRows {
 public:
  explicit ScoredRows(const Tensor& states) : states_(states) {}

  void add(size_t candidate, int64_t row, int64_t target) {
    candidates_.push_back(candidate);
    rows_.push_back(row);
    targets_.push_back(target);
  }

  // Adds the log-likelihood of every token to the score of its candidate.
  void add_scores(const Linear& head, std::vector<double>& scores) const {
    if (rows_.empty()) return;
    const Tensor table = states_.reshape({states_.size(0) * states_.size(1), states_.size(2)});
    const auto count = static_cast<int64_t>(rows_.size());
    const Tensor picked = embed(table, to_tensor(rows_).reshape({count}));
    const Tensor losses =
        cross_entropy(picked, head, to_tensor(targets_).reshape({count})).to(Device());
    for (size_t i = 0; i < candidates_.size(); ++i)
      scores[candidates_[i]] -= losses.data<float>()[i];
  }

 private:
  const Tensor& states_;
  std::vector<size_t> candidates_;
  TokenIds rows_, targets_;
};

size_t best_of(const std::vector<double>& scores) {
  return static_cast<size_t>(std::ranges::max_element(scores) - scores.begin());
}

}  // namespace

std::vector<double> score_candidates(const Transformer& model, const EncodedQuestion& question) {
  const std::vector<Candidate>& candidates = question.candidates;
  require(!candidates.empty(), "score_candidates: a question without candidates");
  const CandidateStates states = read_candidates(model, question);

  // The state after token i − 1 predicts token i. Scored tokens are gathered into as few rows as
  // there are, so that the output head is read once for those after the shared tokens and once for
  // the first of them.
  ScoredRows common(states.common), own(states.own);
  for (size_t n = 0; n < candidates.size(); ++n)
    for (int64_t i = candidates[n].scored_from; i < length(candidates[n]); ++i) {
      const int64_t id = candidates[n].ids[static_cast<size_t>(i)];
      if (i <= states.shared)
        common.add(n, i - 1, id);
      else
        own.add(n, static_cast<int64_t>(n) * states.own.size(1) + i - 1 - states.shared, id);
    }
  std::vector<double> scores(candidates.size(), 0.0);
  common.add_scores(model.weights().head, scores);
  own.add_scores(model.weights().head, scores);
  return scores;
}

void require_finite_scores(const Transformer& model, const EncodedQuestion& question) {
  const std::vector<double> scores = score_candidates(model, question);
  for (size_t i = 0; i < scores.size(); ++i) {
    if (std::isfinite(scores[i])) continue;
    const TokenIds& ids = question.candidates[i].ids;
    fail_not_finite(model, to_tensor({ids.begin(), ids.end() - 1}), "the score of a candidate");
  }
}

std::vector<std::vector<double>> score_candidates(const Transformer& model, Questions questions) {
  const auto [ids, places, targets] = candidate_batch(questions);
  const Tensor hidden = model.forward(ids);
  const Tensor rows = embed(hidden.reshape({ids.count(), hidden.size(2)}), places);
  return candidate_scores(questions,
                          cross_entropy(rows, model.weights().head, targets).to(Device()));
}

std::vector<std::vector<double>> score_questions(const Transformer& model,
                                                 const std::vector<EncodedQuestion>& questions,
                                                 const Progress& progress, const Group& group) {
  const int64_t total = std::ssize(questions);
  require_same_questions(group, questions);
  const Share own = group.share(total);
  const Progress pace = at_own_pace(group, progress);
  std::vector<std::vector<double>> scores(questions.size());
  report(pace, {"evaluate", 0, total, "questions"});
  std::vector<const EncodedQuestion*> all;
  for (int64_t i = own.begin; i < own.end; ++i) all.push_back(&questions[static_cast<size_t>(i)]);
  std::vector<std::vector<const EncodedQuestion*>> batches;
  if (model.device().is_cuda())
    batches = question_batches(all, kGpuTokens);
  else
    for (const EncodedQuestion* question : all) batches.push_back({question});
  const auto scores_of = [&](Questions batch) -> std::vector<std::vector<double>> {
    if (model.device().is_cuda()) return score_candidates(model, batch);
    return {score_candidates(model, *batch.front())};
  };
  int64_t done = 0;
  for (const auto& batch : batches) {
    std::vector<std::vector<double>> of_batch = scores_of(batch);
    for (size_t i = 0; i < batch.size(); ++i)
      scores[static_cast<size_t>(batch[i] - questions.data())] = std::move(of_batch[i]);
    report(pace, {"evaluate", done += std::ssize(batch), total, "questions"});
  }
  gather_rows(group, scores);
  return scores;
}

TaskResult evaluate_task(const Transformer& model, const std::vector<EncodedQuestion>& questions,
                         const Progress& progress, const Group& group) {
  require(!questions.empty(), "evaluate_task: no question given");
  std::vector<std::vector<double>> scores = score_questions(model, questions, progress, group);
  TaskResult result = {.questions = std::ssize(questions)};
  std::vector<double> right(questions.size()), right_norm(questions.size());
  for (size_t q = 0; q < questions.size(); ++q) {
    const EncodedQuestion& question = questions[q];
    const auto gold = static_cast<size_t>(question.gold);
    result.truncated += question.truncated;
    if (!std::ranges::all_of(scores[q], [](double score) { return std::isfinite(score); })) {
      ++result.not_finite;
      continue;
    }
    right[q] = best_of(scores[q]) == gold ? 1 : 0;
    for (size_t i = 0; i < scores[q].size(); ++i)
      scores[q][i] /= static_cast<double>(question.candidates[i].characters);
    right_norm[q] = best_of(scores[q]) == gold ? 1 : 0;
  }
  result.acc = accuracy(right);
  result.acc_norm = accuracy(right_norm);
  return result;
}

}  // namespace dofla
