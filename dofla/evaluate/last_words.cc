#include "dofla/evaluate/last_words.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/error.h"
#include "dofla/data/tasks/candidate_batch.h"
#include "dofla/evaluate/likeliest.h"
#include "dofla/model/finite.h"
#include "dofla/ops/cross_entropy.h"
#include "dofla/ops/embedding.h"

namespace dofla {
namespace {

constexpr int64_t kWordTokens = 16384;  // that are read at once

// Adds the losses of a batch of words to `loss`, and whether each was said to `said`.
void read_words(const Transformer& model, Questions texts, double& loss,
                std::vector<double>& said) {
  const CandidateBatch batch = candidate_batch(texts);
  const Tensor hidden = model.forward(batch.ids);
  const Tensor rows = embed(hidden.reshape({batch.ids.count(), hidden.size(2)}), batch.places);
  const TokenIds likeliest = likeliest_tokens(model, rows, batch.ids);
  const Tensor losses = cross_entropy(rows, model.weights().head, batch.targets).to(Device());
  for (const std::vector<double>& scores : candidate_scores(texts, losses)) loss -= scores[0];
  if (!std::isfinite(loss)) fail_not_finite(model, batch.ids, "the loss of a last word");
  auto found = likeliest.begin();
  for (const EncodedQuestion* text : texts) {
    const Candidate& word = text->candidates[0];
    const auto wanted = word.ids.begin() + word.scored_from;
    said.push_back(std::equal(wanted, word.ids.end(), found) ? 1 : 0);
    found += word.ids.end() - wanted;
  }
}

}  // namespace

LastWords evaluate_last_words(const Transformer& model, const std::vector<EncodedQuestion>& texts,
                              const Progress& progress) {
  require(!texts.empty(), "evaluate_last_words: no text given");
  LastWords result;
  std::vector<const EncodedQuestion*> all;
  for (const EncodedQuestion& text : texts) {
    require(text.candidates.size() == 1, "evaluate_last_words: {} candidates for a last word",
            text.candidates.size());
    result.truncated += text.truncated;
    all.push_back(&text);
  }
  std::vector<double> said;
  double loss = 0;
  for (const auto& batch : question_batches(all, kWordTokens)) {
    read_words(model, batch, loss, said);
    result.words += std::ssize(batch);
    report(progress, {"last words", result.words, std::ssize(texts), "words"});
  }
  result.acc = accuracy(said);
  result.loss = loss / static_cast<double>(result.words);
  result.perplexity = std::exp(result.loss);
  return result;
}

}  // namespace dofla
