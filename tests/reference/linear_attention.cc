#include "tests/reference/linear_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dofla::reference {
namespace {

const double* row(const AttentionCase& c, const std::vector<double>& x, int64_t x_heads,
                  int64_t sequence, int64_t head, int64_t token) {
  const int64_t x_head = head / (c.heads / x_heads);
  return x.data() + ((sequence * x_heads + x_head) * c.tokens + token) * c.width;
}

double dot(const double* x, const double* y, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

}  // namespace

double log_sum_exp(const double* x, int64_t count) {
  const double largest = *std::max_element(x, x + count);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::exp(x[i] - largest);
  return largest + std::log(sum);
}

std::vector<double> log_features(const AttentionCase& c, FeatureSide side, int64_t sequence,
                                 int64_t head) {
  const bool queries = side == FeatureSide::kQueries;
  const std::vector<double>& x = queries ? c.q : c.k;
  const int64_t x_heads = queries ? c.heads : c.key_heads;
  const int64_t offset = c.offset(head), count = c.count(head);
  const double* directions = c.z.data() + offset * c.width;
  if (queries && c.untied()) directions = c.u.data() + c.query_offset(head) * c.width;
  const double norm_weight = c.untied() && !queries ? c.norm_weight[c.feature_head(head)] : 1;
  const auto d = static_cast<double>(c.width);
  std::vector<double> out;
  for (int64_t t = 0; t < c.tokens; ++t) {
    const double* at = row(c, x, x_heads, sequence, head, t);
    const double half_norm = norm_weight * dot(at, at, c.width) / (2 * std::sqrt(d));
    for (int64_t m = 0; m < count; ++m) {
      const double inner = dot(directions + m * c.width, at, c.width) / std::pow(d, 0.25);
      const double log_alpha = c.log_alpha[static_cast<size_t>(offset + m)];
      out.push_back(inner - half_norm + 0.5 * (log_alpha - std::log(static_cast<double>(count))));
    }
  }
  return out;
}

std::vector<double> log_kernel_hat(const AttentionCase& c, int64_t sequence, int64_t head) {
  const std::vector<double> q = log_features(c, FeatureSide::kQueries, sequence, head);
  const std::vector<double> k = log_features(c, FeatureSide::kKeys, sequence, head);
  const int64_t count = c.count(head);
  std::vector<double> out, terms(static_cast<size_t>(count));
  for (int64_t i = 0; i < c.tokens; ++i) {
    for (int64_t j = 0; j < c.tokens; ++j) {
      for (int64_t m = 0; m < count; ++m)
        terms[static_cast<size_t>(m)] =
            q[static_cast<size_t>(i * count + m)] + k[static_cast<size_t>(j * count + m)];
      out.push_back(log_sum_exp(terms.data(), count));
    }
  }
  return out;
}

std::vector<double> log_kernel(const AttentionCase& c, int64_t sequence, int64_t head) {
  std::vector<double> out;
  for (int64_t i = 0; i < c.tokens; ++i)
    for (int64_t j = 0; j < c.tokens; ++j)
      out.push_back(dot(row(c, c.q, c.heads, sequence, head, i),
                        row(c, c.k, c.key_heads, sequence, head, j), c.width) /
                    std::sqrt(static_cast<double>(c.width)));
  return out;
}

std::vector<double> linear_attention(const AttentionCase& c) {
  std::vector<double> out(static_cast<size_t>(c.batch * c.tokens * c.heads * c.width), 0.0);
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.heads; ++h) {
      const std::vector<double> logs = log_kernel_hat(c, b, h);
      for (int64_t i = 0; i < c.tokens; ++i) {
        const double* weights = logs.data() + i * c.tokens;
        const double total = log_sum_exp(weights, c.keys_seen(i));
        double* to = out.data() + ((b * c.tokens + i) * c.heads + h) * c.width;
        for (int64_t j = 0; j < c.keys_seen(i); ++j) {
          const double weight = std::exp(weights[j] - total);
          const double* v = row(c, c.v, c.key_heads, b, h, j);
          for (int64_t d = 0; d < c.width; ++d) to[d] += weight * v[d];
        }
      }
    }
  }
  return out;
}

double weight_error(const AttentionCase& c) {
  const auto most = static_cast<double>(*std::max_element(c.counts.begin(), c.counts.end()));
  const double sums = std::numeric_limits<float>::epsilon() *
                      (std::sqrt(most) + std::sqrt(static_cast<double>(c.tokens)) + 4);
  return 2 * (2 * c.log_feature_error() + sums);
}

double output_tolerance(const AttentionCase& c) {
  return weight_error(c) * c.largest_value();
}

std::vector<double> heads_inside(const std::vector<double>& x, const AttentionCase& c) {
  std::vector<double> out;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t t = 0; t < c.tokens; ++t)
      for (int64_t h = 0; h < c.heads; ++h) {
        const auto from = x.begin() + ((b * c.heads + h) * c.tokens + t) * c.width;
        out.insert(out.end(), from, from + c.width);
      }
  return out;
}

namespace {

// Hands the gradients of log φ̃ on to the queries or keys themselves.
void add_row_gradients(const AttentionCase& c, const LogFeatures& from, int64_t first_row,
                       Sensitive& out) {
  const double inner_scale = std::pow(static_cast<double>(c.width), -0.25);
  const double norm_scale = from.norm_weight / std::sqrt(static_cast<double>(c.width));
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t d = 0; d < c.width; ++d) {
      const double x = from.x[t * c.width + d];
      const auto at = static_cast<size_t>((first_row + t) * c.width + d);
      for (int64_t m = 0; m < from.count; ++m) {
        const double slope = from.directions[m * c.width + d] * inner_scale - x * norm_scale;
        const auto feature = static_cast<size_t>(t * from.count + m);
        out.value[at] += from.gradient[feature] * slope;
        out.sensitivity[at] += std::pow(from.sensitivity[feature] * slope, 2);
      }
    }
  }
}

void add_head_gradients(const AttentionCase& c, const std::vector<double>& grad_out, int64_t b,
                        int64_t h, LinearAttentionReference& out) {
  const std::vector<double> logs = log_kernel_hat(c, b, h);
  LogFeatures query(c, FeatureSide::kQueries, b, h), key(c, FeatureSide::kKeys, b, h);
  const int64_t key_row = (b * c.key_heads + h / (c.heads / c.key_heads)) * c.tokens;
  for (int64_t i = 0; i < c.tokens; ++i) {
    const double* logits = logs.data() + i * c.tokens;
    const double total = log_sum_exp(logits, c.keys_seen(i));
    const double* g = grad_out.data() + ((b * c.tokens + i) * c.heads + h) * c.width;
    double mean = 0, size = 0;  // g·out, and the size of the terms it is made of
    for (int64_t j = 0; j < c.keys_seen(i); ++j) {
      const double* v = row(c, c.v, c.key_heads, b, h, j);
      mean += std::exp(logits[j] - total) * dot(g, v, c.width);
      size += std::exp(logits[j] - total) * std::sqrt(dot(g, g, c.width) * dot(v, v, c.width));
    }
    for (int64_t j = 0; j < c.keys_seen(i); ++j) {
      const double* v = row(c, c.v, c.key_heads, b, h, j);
      const double weight = std::exp(logits[j] - total);
      const double norms = std::sqrt(dot(g, g, c.width) * dot(v, v, c.width));
      for (int64_t m = 0; m < query.count; ++m) {
        const double share = std::exp(query.logs[static_cast<size_t>(i * query.count + m)] +
                                      key.logs[static_cast<size_t>(j * key.count + m)] - logits[j]);
        const double gradient = weight * (dot(g, v, c.width) - mean);
        query.add(i, m, share, gradient, weight * (norms + size));
        key.add(j, m, share, gradient, weight * (norms + size));
      }
      for (int64_t d = 0; d < c.width; ++d) {
        const auto at = static_cast<size_t>((key_row + j) * c.width + d);
        out.v.value[at] += weight * g[d];
        out.v.sensitivity[at] += std::pow(weight * g[d], 2);
      }
    }
  }
  add_row_gradients(c, query, (b * c.heads + h) * c.tokens, out.q);
  add_row_gradients(c, key, key_row, out.k);
  out.features.add(c, query);
  out.features.add(c, key);
}

}  // namespace

LinearAttentionReference linear_attention_backward(const AttentionCase& c,
                                                   const std::vector<double>& grad_out) {
  LinearAttentionReference out{Sensitive(c.q.size()), Sensitive(c.k.size()), Sensitive(c.v.size()),
                               SensitiveFeatures(c)};
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads; ++h) add_head_gradients(c, grad_out, b, h, out);
  for (Sensitive* part : {&out.q, &out.k, &out.v})
    for (double& x : part->sensitivity) x = std::sqrt(x);
  for (const auto& [name, part] : feature_parts(out.features))
    for (double& x : part->sensitivity) x = std::sqrt(x);
  return out;
}

}  // namespace dofla::reference
