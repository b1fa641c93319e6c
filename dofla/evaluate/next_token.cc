#include "dofla/evaluate/next_token.h"

#include <cmath>

#include "dofla/core/error.h"
#include "dofla/distributed/agreement.h"
#include "dofla/model/finite.h"
#include "dofla/ops/cross_entropy.h"

namespace dofla {

SequenceLoss next_token_loss(const Transformer& model, const TokenIds& ids) {
  const auto length = static_cast<int64_t>(ids.size());
  require(length >= 2, "next_token_loss: {} tokens predict nothing", length);
  const Tensor sequence = to_tensor(ids);
  const Tensor hidden = model.forward(sequence).reshape({length, model.config().width});
  const Tensor losses = cross_entropy(hidden.slice(0, length - 1), model.weights().head,
                                      sequence.reshape({length}).slice(1, length))
                            .to(Device());
  double sum = 0;
  for (int64_t i = 0; i < length - 1; ++i) sum += losses.data<float>()[i];
  return {length - 1, sum / static_cast<double>(length - 1)};
}

void require_finite_loss(const Transformer& model, const TokenIds& ids) {
  if (!std::isfinite(next_token_loss(model, ids).loss))
    fail_not_finite(model, to_tensor(ids), "the loss");
}

NextSequence each_of(const WindowSet& windows) {
  return [windows, at = size_t{0}](TokenIds& ids) mutable {
    if (at == windows.size()) return false;
    ids = windows[at++];
    return true;
  };
}

NextSequence each_of(const std::vector<TokenIds>& sequences) {
  return [&sequences, at = size_t{0}](TokenIds& ids) mutable {
    if (at == sequences.size()) return false;
    ids = sequences[at++];
    return true;
  };
}

bool Turns::next(TokenIds& ids) {
  while (next_(ids)) {
    const bool mine = seen_++ % group_.size() == group_.rank();
    if (!group_.alone()) text_.add(std::as_bytes(std::span(ids)));
    if (mine) return true;
  }
  return false;
}

void Turns::require_same() const {
  dofla::require_same(group_, "text", text_.text());
}

NextTokenLoss evaluate_next_token(const Transformer& model, const NextSequence& next,
                                  int64_t total_tokens, const Progress& progress,
                                  const Group& group) {
  const Progress pace = at_own_pace(group, progress);
  Turns turns(group, next);
  std::vector<SequenceLoss> own;
  report(pace, {"evaluate", 0, total_tokens, "tokens"});
  together<NotFinite>(group, [&] {
    int64_t tokens = 0;
    for (TokenIds ids; turns.next(ids);) {
      own.push_back(next_token_loss(model, ids));
      if (!std::isfinite(own.back().loss)) fail_not_finite(model, to_tensor(ids), "the loss");
      tokens += own.back().tokens;
      report(pace, {"evaluate", tokens, total_tokens, "tokens"});
    }
  });
  turns.require_same();
  NextTokenLoss result = {.sequences = gather_turns(group, own)};
  double sum = 0;
  for (const SequenceLoss& sequence : result.sequences) {
    result.tokens += sequence.tokens;
    sum += sequence.loss * static_cast<double>(sequence.tokens);
  }
  require(result.tokens > 0, "evaluate_next_token: no sequence given");
  result.loss = sum / static_cast<double>(result.tokens);
  result.perplexity = std::exp(result.loss);
  return result;
}

}  // namespace dofla
