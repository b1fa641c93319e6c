#include "dofla/train/candidate_gradient.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/error.h"
#include "dofla/ops/embedding.h"
#include "dofla/ops/rounding.h"

namespace dofla {
namespace {

// What a model has to read for one or several candidates: the last token is only predicted.
struct Sequence {
  TokenIds::const_iterator begin, end;
  int64_t size() const { return end - begin; }
};

// A scored token: predicted at a place of the batch.
struct ScoredToken {
  int64_t sequence = 0, position = 0;
  int64_t target = 0;
};

struct Packed {
  std::vector<Sequence> sequences;
  std::vector<ScoredToken> scored;  // candidate after candidate, question after question

  int64_t rows() const { return static_cast<int64_t>(sequences.size()); }
  int64_t longest() const {
    int64_t most = 0;
    for (const Sequence& sequence : sequences) most = std::max(most, sequence.size());
    return most;
  }
};

int64_t scored_tokens(const Candidate& candidate) {
  return static_cast<int64_t>(candidate.ids.size()) - candidate.scored_from;
}

// The sequence from `first` on that holds `wanted`, grown if it was only its beginning, or a new
// one.
int64_t place(const Sequence& wanted, size_t first, std::vector<Sequence>& sequences) {
  for (size_t i = first; i < sequences.size(); ++i) {
    Sequence& known = sequences[i];
    const int64_t common = std::min(known.size(), wanted.size());
    if (!std::equal(known.begin, known.begin + common, wanted.begin)) continue;
    if (wanted.size() > known.size()) known = wanted;
    return static_cast<int64_t>(i);
  }
  sequences.push_back(wanted);
  return static_cast<int64_t>(sequences.size()) - 1;
}

Packed pack(std::span<const EncodedQuestion* const> questions) {
  Packed packed;
  for (const EncodedQuestion* question : questions) {
    const size_t first = packed.sequences.size();
    const auto count = static_cast<int64_t>(question->candidates.size());
    require(question->gold >= 0 && question->gold < count,
            "candidate_gradient: gold {} of {} candidates", question->gold, count);
    for (const Candidate& candidate : question->candidates) {
      const auto tokens = static_cast<int64_t>(candidate.ids.size());
      require(candidate.scored_from >= 1 && candidate.scored_from < tokens,
              "candidate_gradient: scored from token {} of {}", candidate.scored_from, tokens);
      const int64_t at =
          place({candidate.ids.begin(), candidate.ids.end() - 1}, first, packed.sequences);
      for (int64_t i = candidate.scored_from; i < tokens; ++i)
        packed.scored.push_back({at, i - 1, candidate.ids[static_cast<size_t>(i)]});
    }
  }
  return packed;
}

// [N, T]. What follows the end of a sequence never reaches back, and nobody scores it.
Tensor padded_ids(const Packed& packed) {
  const int64_t longest = packed.longest();
  Tensor ids({packed.rows(), longest}, DType::kI64);
  int64_t* row = ids.data<int64_t>();
  for (const Sequence& sequence : packed.sequences) {
    int64_t* end = std::copy(sequence.begin, sequence.end, row);
    std::fill(end, row + longest, *sequence.begin);
    row += longest;
  }
  return ids;
}

struct ScoredRows {
  Tensor places;   // [S], I64: rows of the hidden states [N·T, C]
  Tensor targets;  // [S], I64
};

ScoredRows scored_rows(const Packed& packed) {
  const int64_t tokens = packed.longest();
  const Shape shape = {static_cast<int64_t>(packed.scored.size())};
  ScoredRows rows = {Tensor(shape, DType::kI64), Tensor(shape, DType::kI64)};
  int64_t* place = rows.places.data<int64_t>();
  int64_t* target = rows.targets.data<int64_t>();
  for (const ScoredToken& token : packed.scored) {
    *place++ = token.sequence * tokens + token.position;
    *target++ = token.target;
  }
  return rows;
}

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

Losses question_losses(std::span<const EncodedQuestion* const> questions, double share,
                       const Tensor& token_losses) {  // [S]
  Losses losses = {0, Tensor(token_losses.shape())};
  const float* loss = token_losses.data<float>();
  float* slope = losses.slopes.data<float>();
  for (const EncodedQuestion* question : questions) {
    std::vector<double> scores;
    for (const Candidate& candidate : question->candidates) {
      double score = 0;
      for (int64_t i = scored_tokens(candidate); i > 0; --i) score -= *loss++;
      scores.push_back(score);
    }
    losses.sum += cross_entropy_of(scores, static_cast<size_t>(question->gold));
    for (size_t i = 0; i < scores.size(); ++i)
      slope = std::fill_n(slope, scored_tokens(question->candidates[i]),
                          static_cast<float>(-share * scores[i]));
  }
  return losses;
}

}  // namespace

double candidate_gradient(const Transformer& model,
                          std::span<const EncodedQuestion* const> questions, double share,
                          bool recompute, Gradients& gradients) {
  require(!questions.empty(), "candidate_gradient: no question given");
  const Packed packed = pack(questions);
  Tape tape = {.recompute = recompute, .ids = {}, .blocks = {}, .last = {}};
  ForwardOptions forward;
  forward.tape = &tape;
  const Tensor hidden = model.forward(padded_ids(packed), forward);

  // The scored rows alone, so that the output head sees nothing else.
  const Shape flat = {hidden.size(0) * hidden.size(1), hidden.size(2)};
  const auto [places, targets] = scored_rows(packed);
  const Tensor rows = embed(hidden.reshape(flat), places);
  const Linear& head = model.weights().head;
  const Losses losses =
      question_losses(questions, share, cross_entropy(rows, head, targets).to(Device()));
  Linear* head_gradient = gradients.weights ? &gradients.weights->head : nullptr;
  const Tensor grad_rows =
      cross_entropy_backward(rows, head, targets, losses.slopes, head_gradient).x;

  Tensor grad_hidden = Tensor::zeros(flat, DType::kF32, hidden.device());
  embed_backward(places, grad_rows, grad_hidden);  // several candidates may score one place
  Tensor rounded(hidden.shape(), hidden.dtype(), hidden.device());
  round_into(grad_hidden.reshape(hidden.shape()), rounded);
  model.backward(tape, rounded, gradients);
  return losses.sum;
}

BatchShape batch_shape(const EncodedQuestion& question) {
  const EncodedQuestion* const one = &question;
  const Packed packed = pack({&one, 1});
  return {packed.rows(), packed.longest()};
}

}  // namespace dofla
