#include "dofla/train/candidate_gradient.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/error.h"
#include "dofla/ops/cross_entropy.h"
#include "dofla/ops/embedding.h"
#include "dofla/ops/rounding.h"

namespace dofla {
namespace {

// −log softmax(scores)[gold]; the scores become its slopes in them.
double cross_entropy_of(std::vector<double>& scores, size_t gold) {
  const double most = *std::ranges::max_element(scores), right = scores[gold];
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - most);
  for (double& score : scores) score /= sum;
  scores[gold] -= 1;
  return most - right + std::log(sum);
}

struct Losses {
  double sum = 0;
  Tensor slopes;  // [S], of share · sum in the loss of every scored token
};

Losses question_losses(Questions questions, double share, const Tensor& token_losses) {  // [S]
  Losses losses = {0, Tensor(token_losses.shape())};
  float* slope = losses.slopes.data<float>();
  std::vector<std::vector<double>> scores = candidate_scores(questions, token_losses);
  for (size_t q = 0; q < questions.size(); ++q) {
    const auto& [candidates, gold, truncated] = *questions[q];
    require(gold >= 0 && gold < std::ssize(candidates), "gold {} of {} candidates", gold,
            candidates.size());
    losses.sum += cross_entropy_of(scores[q], static_cast<size_t>(gold));
    for (size_t i = 0; i < candidates.size(); ++i)
      slope = std::fill_n(slope, std::ssize(candidates[i].ids) - candidates[i].scored_from,
                          static_cast<float>(-share * scores[q][i]));
  }
  return losses;
}

}  // namespace

double candidate_gradient(const Transformer& model, Questions questions, double share,
                          bool recompute, Gradients& gradients) {
  const auto [ids, places, targets] = candidate_batch(questions);
  Tape tape = {.recompute = recompute, .ids = {}, .blocks = {}, .last = {}};
  ForwardOptions forward;
  forward.tape = &tape;
  const Tensor hidden = model.forward(ids, forward);

  // The scored rows alone, so that the output head sees nothing else.
  const Shape flat = {hidden.size(0) * hidden.size(1), hidden.size(2)};
  const Tensor rows = embed(hidden.reshape(flat), places);
  const Linear& head = model.weights().head;
  const Losses losses =
      question_losses(questions, share, cross_entropy(rows, head, targets).to(Device()));
  const Tensor grad_rows =
      cross_entropy_backward(rows, head, targets, losses.slopes, gradients.head()).x;

  Tensor grad_hidden = Tensor::zeros(flat, DType::kF32, hidden.device());
  embed_backward(places, grad_rows, grad_hidden);  // several candidates may score one place
  Tensor rounded(hidden.shape(), hidden.dtype(), hidden.device());
  round_into(grad_hidden.reshape(hidden.shape()), rounded);
  model.backward(tape, rounded, gradients);
  return losses.sum;
}

}  // namespace dofla
