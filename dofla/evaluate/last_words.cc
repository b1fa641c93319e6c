#include "dofla/evaluate/last_words.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/error.h"
#include "dofla/data/tasks/candidate_batch.h"
#include "dofla/distributed/agreement.h"
#include "dofla/evaluate/likeliest.h"
#include "dofla/model/finite.h"
#include "dofla/ops/cross_entropy.h"
#include "dofla/ops/embedding.h"

namespace dofla {
namespace {

constexpr int64_t kWordTokens = 16384;  // that are read at once

struct Word {
  double loss, said;  // 1 if it is
};

void read_words(const Transformer& model, Questions texts, std::vector<Word>& words) {
  const CandidateBatch batch = candidate_batch(texts);
  const Tensor hidden = model.forward(batch.ids);
  const Tensor rows = embed(hidden.reshape({batch.ids.count(), hidden.size(2)}), batch.places);
  const TokenIds likeliest = likeliest_tokens(model, rows, batch.ids);
  const Tensor losses = cross_entropy(rows, model.weights().head, batch.targets).to(Device());
  const std::vector<std::vector<double>> scores = candidate_scores(texts, losses);
  auto found = likeliest.begin();
  for (size_t i = 0; i < texts.size(); ++i) {
    if (!std::isfinite(scores[i][0])) fail_not_finite(model, batch.ids, "the loss of a last word");
    const Candidate& word = texts[i]->candidates[0];
    const auto wanted = word.ids.begin() + word.scored_from;
    words.push_back({-scores[i][0], std::equal(wanted, word.ids.end(), found) ? 1.0 : 0.0});
    found += word.ids.end() - wanted;
  }
}

}  // namespace

LastWords evaluate_last_words(const Transformer& model, const std::vector<EncodedQuestion>& texts,
                              const Progress& progress, const Group& group) {
  require(!texts.empty(), "evaluate_last_words: no text given");
  LastWords result = {.words = std::ssize(texts)};
  std::vector<const EncodedQuestion*> all;
  for (const EncodedQuestion& text : texts) {
    require(text.candidates.size() == 1, "evaluate_last_words: {} candidates for a last word",
            text.candidates.size());
    result.truncated += text.truncated;
    all.push_back(&text);
  }
  require_same_questions(group, texts);
  const Share own = group.share(result.words);
  const Progress pace = at_own_pace(group, progress);
  std::vector<Word> words;
  together<NotFinite>(group, [&] {
    for (const auto& batch :
         question_batches(std::span(all).subspan(static_cast<size_t>(own.begin),
                                                 static_cast<size_t>(own.count())),
                          kWordTokens)) {
      read_words(model, batch, words);
      report(pace, {"last words", std::ssize(words), result.words, "words"});
    }
  });
  std::vector<double> said;
  double loss = 0;
  for (const std::vector<Word>& rank : gather_all(group, words))
    for (const Word& word : rank) {
      said.push_back(word.said);
      loss += word.loss;
    }
  result.acc = accuracy(said);
  result.loss = loss / static_cast<double>(result.words);
  result.perplexity = std::exp(result.loss);
  return result;
}

}  // namespace dofla
