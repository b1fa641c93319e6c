#include "dofla/distill/attention_entropy.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/error.h"
#include "dofla/core/parallel.h"
#include "dofla/data/batches.h"

namespace dofla {
namespace {

constexpr int64_t kQueries = 128;  // of a window

// With scores s and Z = Σ exp s, the entropy of the weights exp(s)/Z is log Z − Σ s exp(s)/Z.
double row_entropy(const float* query, const float* keys, int64_t count, int64_t size,
                   std::vector<double>& scores) {
  scores.resize(static_cast<size_t>(count));
  const double scale = 1 / std::sqrt(static_cast<double>(size));
  for (double& score : scores) {
    score = 0;
    for (int64_t c = 0; c < size; ++c) score += double{query[c]} * keys[c];
    score *= scale;
    keys += size;
  }
  const double top = *std::ranges::max_element(scores);
  double sum = 0, weighted = 0;
  for (const double score : scores) {
    const double weight = std::exp(score - top);
    sum += weight;
    weighted += weight * (score - top);
  }
  return std::log(sum) - weighted / sum;
}

// The mean over the heads of one window.
double mean_entropy(const Tensor& q, const Tensor& k, PairMask mask) {  // [1, H, T, D], [1, Hkv, …]
  const int64_t heads = q.size(1), tokens = q.size(2), size = q.size(3);
  const int64_t queries = std::min(tokens, kQueries), group = heads / k.size(1);
  std::vector<double> sums(static_cast<size_t>(heads));
  parallel_for(heads, [&](int64_t head) {
    std::vector<double> scores;
    const float* keys = k.data<float>() + head / group * tokens * size;
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t row = (2 * i + 1) * tokens / (2 * queries);  // the middle of its share
      const float* query = q.data<float>() + (head * tokens + row) * size;
      const int64_t seen = mask == PairMask::kFull ? tokens : row + 1;
      sums[static_cast<size_t>(head)] += row_entropy(query, keys, seen, size, scores);
    }
  });
  double sum = 0;
  for (const double one : sums) sum += one;
  return sum / static_cast<double>(heads * queries);
}

}  // namespace

std::vector<double> attention_entropy(const Transformer& teacher,
                                      const std::vector<std::vector<int64_t>>& windows,
                                      PairMask mask) {
  require(!windows.empty(), "attention_entropy: no windows");
  std::vector<double> layers(static_cast<size_t>(teacher.config().layers));
  ForwardOptions forward;
  forward.heads_only = true;
  forward.observer = [&](int64_t layer, const Tensor& q, const Tensor& k, const Tensor&) {
    layers[static_cast<size_t>(layer)] +=
        mean_entropy(contiguous_heads(q).to(Device()).to(DType::kF32),
                     contiguous_heads(k).to(Device()).to(DType::kF32), mask) /
        static_cast<double>(windows.size());
  };
  for (const std::vector<int64_t>& window : windows) teacher.forward(to_tensor(window), forward);
  return layers;
}

}  // namespace dofla
