#include "dofla/distill/pairs_to_learn.h"

#include <algorithm>

#include "dofla/ops/head_parts.h"
#include "dofla/ops/heads.h"
#include "dofla/ops/hybrid_attention.h"

namespace dofla {

PairsToLearn pairs_to_learn(const Tensor& q, const Tensor& k, const Tensor& v,
                            const ExactKeys& exact) {
  if (exact.empty()) return {q, k};
  const std::vector<KeyPart> parts = equal_key_parts(exact, k.size(1));
  std::vector<LeftPairs> left;
  int64_t rows = 0;
  for (const auto& [part, keys] : parts) {
    left.push_back(left_pairs(take_heads(q, part), take_heads(k, part), take_heads(v, part), keys));
    rows = std::max(rows, left.back().q.size(2));
  }
  if (parts.size() == 1) return {left[0].q, left[0].k, left[0].rest, exact.block};
  // Heads with more exact keys leave fewer pairs: the rest of their rows is padding.
  const int64_t batch = q.size(0), heads = q.size(1), size = q.size(3);
  Tensor padding({batch * heads * rows});
  std::fill_n(padding.data<float>(), padding.count(), kPaddedRest);
  PairsToLearn all = {Tensor::zeros({batch, heads, rows, size}, q.dtype(), q.device()),
                      Tensor::zeros({batch, k.size(1), rows, size}, k.dtype(), k.device()),
                      padding.to(q.device()).reshape({batch, heads, rows}), exact.block};
  const auto put = [](const Tensor& from, const HeadPart& part, const Tensor& to) {
    Tensor first = tokens_of(to, 0, from.size(2));
    put_heads(from, part, first);
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    const HeadPart& part = parts[i].part;
    const auto as_rows = [](const Tensor& x) {
      return x.reshape({x.size(0), x.size(1), x.size(2), 1});
    };
    put(left[i].q, part, all.q);
    put(left[i].k, part, all.k);
    put(as_rows(left[i].rest), part, as_rows(all.rest));
  }
  return all;
}

FeatureLoss feature_loss(const PairsToLearn& pairs, const Features& features,
                         FeatureLossOptions options) {
  options.block = pairs.block;
  return feature_loss(pairs.q, pairs.k, features, options, pairs.rest);
}

}  // namespace dofla
