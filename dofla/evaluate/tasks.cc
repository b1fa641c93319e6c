#include "dofla/evaluate/tasks.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "dofla/core/error.h"
#include "dofla/ops/matmul.h"

namespace dofla {
namespace {

int64_t length(const Candidate& candidate) {
  return static_cast<int64_t>(candidate.ids.size());
}

// Hidden states of all candidates of a question.
struct CandidateStates {
  int64_t shared = 0;  // the first tokens, which all candidates have in common
  Tensor common;       // [1, shared, C]
  Tensor own;          // [N, T, C] of the tokens after them; undefined where nobody has any

  // The state after `token` tokens of candidate n, which predicts the next one.
  const float* after(int64_t n, int64_t token) const {
    if (token <= shared) return common.data<float>() + (token - 1) * common.size(2);
    return own.data<float>() + (n * own.size(1) + token - 1 - shared) * own.size(2);
  }
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

size_t best_of(const std::vector<double>& scores) {
  return static_cast<size_t>(std::ranges::max_element(scores) - scores.begin());
}

Accuracy accuracy(int64_t right, int64_t questions) {
  const auto n = static_cast<double>(questions);
  const double mean = static_cast<double>(right) / n;
  return {mean, std::sqrt(mean * (1 - mean) / (n - 1))};
}

}  // namespace

std::vector<double> score_candidates(const Transformer& model, const EncodedQuestion& question) {
  const std::vector<Candidate>& candidates = question.candidates;
  require(!candidates.empty(), "score_candidates: a question without candidates");
  const CandidateStates states = read_candidates(model, question);

  // What predicts the scored tokens of all candidates, so that the output head is read once.
  const int64_t width = model.config().width;
  int64_t scored = 0;
  for (const Candidate& candidate : candidates) scored += length(candidate) - candidate.scored_from;
  Tensor rows({scored, width}), targets({scored}, DType::kI64);
  float* row = rows.data<float>();
  int64_t* target = targets.data<int64_t>();
  for (size_t n = 0; n < candidates.size(); ++n)
    for (int64_t i = candidates[n].scored_from; i < length(candidates[n]); ++i) {
      row = std::copy_n(states.after(static_cast<int64_t>(n), i), width, row);
      *target++ = candidates[n].ids[static_cast<size_t>(i)];
    }

  const Tensor losses = cross_entropy(rows, model.weights().head, targets);
  const float* loss = losses.data<float>();
  std::vector<double> scores;
  for (const Candidate& candidate : candidates) {
    const int64_t count = length(candidate) - candidate.scored_from;
    scores.push_back(-std::accumulate(loss, loss + count, 0.0));
    loss += count;
  }
  return scores;
}

TaskResult evaluate_task(const Transformer& model, const std::vector<EncodedQuestion>& questions,
                         const Progress& progress) {
  require(!questions.empty(), "evaluate_task: no question given");
  const auto total = static_cast<int64_t>(questions.size());
  TaskResult result;
  int64_t right = 0, right_norm = 0;
  report(progress, {"evaluate", 0, total, "questions"});
  for (const EncodedQuestion& question : questions) {
    std::vector<double> scores = score_candidates(model, question);
    const auto gold = static_cast<size_t>(question.gold);
    if (std::ranges::all_of(scores, [](double score) { return std::isfinite(score); })) {
      right += best_of(scores) == gold;
      for (size_t i = 0; i < scores.size(); ++i)
        scores[i] /= static_cast<double>(question.candidates[i].characters);
      right_norm += best_of(scores) == gold;
    } else {
      ++result.not_finite;
    }
    result.truncated += question.truncated;
    report(progress, {"evaluate", ++result.questions, total, "questions"});
  }
  result.acc = accuracy(right, total);
  result.acc_norm = accuracy(right_norm, total);
  return result;
}

}  // namespace dofla
