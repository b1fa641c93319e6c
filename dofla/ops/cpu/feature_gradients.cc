#include "dofla/ops/cpu/feature_gradients.h"

#include <cmath>

#include "dofla/ops/cpu/sgemm.h"
#include "dofla/ops/cpu/vector_rows.h"

namespace dofla::cpu {
namespace {

void add_side(const SideFeatures& features, const float* x, const float* gradient, int64_t rows,
              float* grad_directions, float* grad_log_alpha) {
  const int64_t count = features.count, width = features.width;
  sgemm({.transpose_a = true, .alpha = features.inner_scale, .beta = 1}, count, width, rows,
        gradient, count, x, width, grad_directions, width);
  for (int64_t t = 0; t < rows; ++t) add_scaled(gradient + t * count, 0.5f, count, grad_log_alpha);
}

// log φ̃ of a key has −η|k|²/(2√d) in every feature.
float norm_weight_gradient(const SideFeatures& features, const float* k, const float* gradient,
                           int64_t rows) {
  const int64_t count = features.count, width = features.width;
  double sum = 0;
  for (int64_t t = 0; t < rows; ++t)
    sum -= double{dot(k + t * width, k + t * width, width)} * row_sum(gradient + t * count, count);
  return static_cast<float>(sum * 0.5 / std::sqrt(static_cast<double>(width)));
}

Tensor sum_over_batch(const Tensor& parts, float factor) {
  Shape shape = parts.shape();
  shape.erase(shape.begin());
  Tensor out = Tensor::zeros(shape);
  for (int64_t b = 0; b < parts.size(0); ++b)
    add_scaled(parts.data<float>() + b * out.count(), factor, out.count(), out.data<float>());
  return out;
}

// Rows of query heads to rows of key heads; `counts` has the rows of a head.
Tensor sum_over_group(const Tensor& parts, const std::vector<int64_t>& counts, int64_t group) {
  Shape shape = parts.shape();
  const int64_t size = parts.count() / shape[0];  // of a row
  shape[0] /= group;
  Tensor out = Tensor::zeros(shape);
  const float* from = parts.data<float>();
  float* to = out.data<float>();
  for (const int64_t count : counts) {
    for (int64_t i = 0; i < group; ++i, from += count * size)
      add_scaled(from, 1.0f, count * size, to);
    to += count * size;
  }
  return out;
}

}  // namespace

FeatureGradientParts::FeatureGradientParts(const Features& features, int64_t batch)
    : features_(features), offsets_(features.query_offsets()) {
  const int64_t rows = offsets_.back(), width = features.z.size(1);
  query_directions_ = Tensor::zeros({batch, rows, width});
  key_directions_ = features.untied() ? Tensor::zeros({batch, rows, width}) : query_directions_;
  log_alpha_ = Tensor::zeros({batch, rows});
  norm_weight_ = Tensor::zeros({batch, features.query_heads()});
}

void FeatureGradientParts::take(int64_t sequence, int64_t head, const HeadFeatures& own,
                                const float* q, const float* grad_q, const float* k,
                                const float* grad_k, int64_t tokens) {
  const int64_t row = sequence * offsets_.back() + offsets_[static_cast<size_t>(head)];
  const int64_t width = own.key.width;
  float* log_alpha = log_alpha_.data<float>() + row;
  add_side(own.query, q, grad_q, tokens, query_directions_.data<float>() + row * width, log_alpha);
  add_side(own.key, k, grad_k, tokens, key_directions_.data<float>() + row * width, log_alpha);
  if (features_.untied())
    norm_weight_.data<float>()[sequence * features_.query_heads() + head] =
        norm_weight_gradient(own.key, k, grad_k, tokens);
}

FeatureGradients FeatureGradientParts::sum(float factor) const {
  const Tensor queries = sum_over_batch(query_directions_, factor);
  const Tensor log_alpha = sum_over_batch(log_alpha_, factor);
  if (!features_.untied()) return {queries, log_alpha};
  const int64_t group = features_.group();
  const std::vector<int64_t> ones(features_.counts.size(), 1);
  return {sum_over_group(sum_over_batch(key_directions_, factor), features_.counts, group),
          sum_over_group(log_alpha, features_.counts, group), queries,
          sum_over_group(sum_over_batch(norm_weight_, factor), ones, group)};
}

}  // namespace dofla::cpu
