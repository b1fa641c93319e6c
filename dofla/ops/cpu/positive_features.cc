#include "dofla/ops/cpu/positive_features.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/sgemm.h"
#include "dofla/ops/cpu/vector_rows.h"

namespace dofla::cpu {

std::vector<HeadFeatures> head_features(const Features& features) {
  const int64_t width = features.z.size(1), group = features.group();
  const float* z = features.z.data<float>();
  const float* u = features.untied() ? features.u.data<float>() : z;
  const float* log_alpha = features.log_alpha.data<float>();
  const auto inner_scale = static_cast<float>(std::pow(static_cast<double>(width), -0.25));
  const auto norm_scale = static_cast<float>(
      features.subtract_norm ? 0.5 / std::sqrt(static_cast<double>(width)) : 0.0);
  std::vector<HeadFeatures> out;
  out.reserve(static_cast<size_t>(features.query_heads()));
  for (int64_t head = 0; head < features.heads(); ++head) {
    const int64_t count = features.counts[static_cast<size_t>(head)];
    SideFeatures key{z,           count,     width, std::vector<float>(static_cast<size_t>(count)),
                     inner_scale, norm_scale};
    const double log_count = std::log(static_cast<double>(count));
    for (int64_t m = 0; m < count; ++m)
      key.offset[static_cast<size_t>(m)] = static_cast<float>(0.5 * (log_alpha[m] - log_count));
    SideFeatures query = key;
    if (features.untied()) key.norm_scale *= features.norm_weight.data<float>()[head];
    for (int64_t i = 0; i < group; ++i, u += count * width) {
      query.directions = u;
      out.push_back({query, key});
    }
    z += count * width;
    log_alpha += count;
  }
  return out;
}

void log_features_without_norm(const SideFeatures& features, const float* x, int64_t rows,
                               float* out) {
  const int64_t count = features.count;
  for (int64_t t = 0; t < rows; ++t) std::copy_n(features.offset.data(), count, out + t * count);
  if (rows == 1)
    return add_matrix_vector(features.directions, x, features.inner_scale, count, features.width,
                             out);
  sgemm({.transpose_b = true, .alpha = features.inner_scale, .beta = 1}, rows, count,
        features.width, x, features.width, features.directions, features.width, out, count);
}

void half_norms(const SideFeatures& features, const float* x, int64_t rows, float* out) {
  const int64_t width = features.width;
  for (int64_t t = 0; t < rows; ++t)
    out[t] = features.norm_scale * dot(x + t * width, x + t * width, width);
}

void log_features(const SideFeatures& features, const float* x, int64_t rows, float* out) {
  log_features_without_norm(features, x, rows, out);
  for (int64_t t = 0; t < rows; ++t) {
    float half_norm = 0;
    half_norms(features, x + t * features.width, 1, &half_norm);
    add_constant(-half_norm, features.count, out + t * features.count);
  }
}

Tensor log_positive_features(const Tensor& x, const Features& features, FeatureSide side) {
  const int64_t batch = x.size(0), x_heads = x.size(1), tokens = x.size(2), width = x.size(3);
  const int64_t heads = features.query_heads();
  const std::vector<HeadFeatures> head = head_features(features);
  const std::vector<int64_t> offsets = features.query_offsets();
  const int64_t total = offsets.back();
  Tensor out({batch, tokens, total});
  const float* in = x.data<float>();
  float* to = out.data<float>();
  parallel_for(batch * heads, [&](int64_t task) {
    const int64_t b = task / heads, h = task % heads;
    const HeadFeatures& both = head[static_cast<size_t>(h)];
    const SideFeatures& f = side == FeatureSide::kQueries ? both.query : both.key;
    std::vector<float> logs(static_cast<size_t>(tokens * f.count));
    log_features(f, in + (b * x_heads + h / (heads / x_heads)) * tokens * width, tokens,
                 logs.data());
    for (int64_t t = 0; t < tokens; ++t)
      std::copy_n(logs.data() + t * f.count, f.count,
                  to + (b * tokens + t) * total + offsets[static_cast<size_t>(h)]);
  });
  return out;
}

}  // namespace dofla::cpu
