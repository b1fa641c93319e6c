#include "dofla/data/tasks/candidate_batch.h"

#include <algorithm>

#include "dofla/core/error.h"

namespace dofla {
namespace {

// What a model has to read for one or several candidates: the last token is only predicted.
struct Sequence {
  TokenIds::const_iterator begin, end;
  int64_t size() const { return end - begin; }
};

int64_t longest(const std::vector<Sequence>& sequences) {
  int64_t most = 0;
  for (const Sequence& sequence : sequences) most = std::max(most, sequence.size());
  return most;
}

int64_t length(const Candidate& candidate) {
  return static_cast<int64_t>(candidate.ids.size());
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

// Adds the sequences of a question, and the number of the one that each candidate reads.
void place_question(const EncodedQuestion& question, std::vector<Sequence>& sequences,
                    std::vector<int64_t>& numbers) {
  require(!question.candidates.empty(), "a question without candidates");
  const size_t first = sequences.size();
  for (const Candidate& candidate : question.candidates) {
    require(candidate.scored_from >= 1 && candidate.scored_from < length(candidate),
            "a candidate scored from token {} of {}", candidate.scored_from, length(candidate));
    numbers.push_back(place({candidate.ids.begin(), candidate.ids.end() - 1}, first, sequences));
  }
}

// [N, T]. What follows the end of a sequence never reaches back.
Tensor padded_ids(const std::vector<Sequence>& sequences) {
  const int64_t tokens = longest(sequences);
  Tensor ids({static_cast<int64_t>(sequences.size()), tokens}, DType::kI64);
  int64_t* row = ids.data<int64_t>();
  for (const Sequence& sequence : sequences) {
    int64_t* end = std::copy(sequence.begin, sequence.end, row);
    std::fill(end, row + tokens, *sequence.begin);
    row += tokens;
  }
  return ids;
}

}  // namespace

CandidateBatch candidate_batch(Questions questions) {
  require(!questions.empty(), "a batch of no questions");
  std::vector<Sequence> sequences;
  std::vector<int64_t> numbers;  // of the sequence of each candidate
  for (const EncodedQuestion* question : questions) place_question(*question, sequences, numbers);
  const Tensor ids = padded_ids(sequences);
  TokenIds places, targets;
  auto number = numbers.begin();
  for (const EncodedQuestion* question : questions)
    for (const Candidate& candidate : question->candidates) {
      for (int64_t i = candidate.scored_from; i < length(candidate); ++i) {
        places.push_back(*number * ids.size(1) + i - 1);
        targets.push_back(candidate.ids[static_cast<size_t>(i)]);
      }
      ++number;
    }
  const Shape scored = {static_cast<int64_t>(places.size())};
  return {ids, to_tensor(places).reshape(scored), to_tensor(targets).reshape(scored)};
}

std::vector<std::vector<double>> candidate_scores(Questions questions, const Tensor& losses) {
  std::vector<std::vector<double>> scores;
  const float* loss = losses.data<float>();
  for (const EncodedQuestion* question : questions) {
    std::vector<double>& of_question = scores.emplace_back();
    for (const Candidate& candidate : question->candidates) {
      double score = 0;
      for (int64_t i = candidate.scored_from; i < length(candidate); ++i) score -= *loss++;
      of_question.push_back(score);
    }
  }
  require(loss == losses.data<float>() + losses.count(), "losses of other questions");
  return scores;
}

std::vector<std::vector<const EncodedQuestion*>> question_batches(Questions questions,
                                                                  int64_t most_tokens) {
  struct Sized {
    const EncodedQuestion* question;
    int64_t sequences, tokens;
  };
  std::vector<Sized> all;
  for (const EncodedQuestion* question : questions) {
    std::vector<Sequence> sequences;
    std::vector<int64_t> numbers;
    place_question(*question, sequences, numbers);
    all.push_back({question, static_cast<int64_t>(sequences.size()), longest(sequences)});
  }
  std::ranges::stable_sort(all, {}, &Sized::tokens);
  std::vector<std::vector<const EncodedQuestion*>> batches;
  int64_t sequences = 0;
  for (const Sized& next : all) {
    if (batches.empty() || (sequences + next.sequences) * next.tokens > most_tokens) {
      batches.emplace_back();
      sequences = 0;
    }
    batches.back().push_back(next.question);
    sequences += next.sequences;
  }
  return batches;
}

}  // namespace dofla
