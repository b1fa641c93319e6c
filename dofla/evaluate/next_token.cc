#include "dofla/evaluate/next_token.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/error.h"
#include "dofla/core/parallel.h"

namespace dofla {
namespace {

// Rows whose logits are held at a time: enough for a full-speed matrix product, and 26 MB for a
// vocabulary of 50,000.
constexpr int64_t kRows = 128;

}  // namespace

double cross_entropy(std::span<const float> logits, int64_t target) {
  const auto count = static_cast<int64_t>(logits.size());
  require(target >= 0 && target < count, "cross_entropy: target {} of {} logits", target, count);
  const float* x = logits.data();
  float top = x[0];
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < count; ++i) top = std::max(top, x[i]);
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(std::exp(x[i] - top));
  return std::log(sum) + (static_cast<double>(top) - static_cast<double>(x[target]));
}

SequenceLoss next_token_loss(const Transformer& model, const TokenIds& ids) {
  const auto length = static_cast<int64_t>(ids.size());
  require(length >= 2, "next_token_loss: {} tokens predict nothing", length);
  const Tensor hidden = model.forward(to_tensor(ids)).reshape({length, model.config().width});

  const int64_t predictions = length - 1;
  std::vector<double> losses(static_cast<size_t>(predictions));
  for (int64_t begin = 0; begin < predictions; begin += kRows) {
    const int64_t end = std::min(begin + kRows, predictions);
    const Tensor logits = model.logits(hidden.slice(begin, end));  // [rows, V]
    const int64_t vocabulary = logits.size(1);
    const float* rows = logits.data<float>();
    parallel_for(end - begin, [&](int64_t i) {
      const auto row = static_cast<size_t>(begin + i);
      losses[row] = cross_entropy({rows + i * vocabulary, static_cast<size_t>(vocabulary)},
                                  ids[row + 1]);
    });
  }
  double sum = 0;  // in the order of the rows, so that threads do not change the result
  for (const double loss : losses) sum += loss;
  return {predictions, sum / static_cast<double>(predictions)};
}

NextTokenLoss evaluate_next_token(const Transformer& model, const NextSequence& next,
                                  int64_t total_tokens, const Progress& progress) {
  NextTokenLoss result;
  double sum = 0;
  TokenIds ids;
  report(progress, {"evaluate", 0, total_tokens, "tokens"});
  while (next(ids)) {
    const SequenceLoss sequence = next_token_loss(model, ids);
    result.tokens += sequence.tokens;
    sum += sequence.loss * static_cast<double>(sequence.tokens);
    result.sequences.push_back(sequence);
    report(progress, {"evaluate", result.tokens, total_tokens, "tokens"});
  }
  require(result.tokens > 0, "evaluate_next_token: no sequence given");
  result.loss = sum / static_cast<double>(result.tokens);
  result.perplexity = std::exp(result.loss);
  return result;
}

}  // namespace dofla
