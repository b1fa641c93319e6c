#include "tests/reference/linear_attention.h"

#include <algorithm>
#include <cmath>

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

std::vector<double> log_features(const AttentionCase& c, const std::vector<double>& x,
                                 int64_t x_heads, int64_t sequence, int64_t head) {
  int64_t offset = 0;
  for (int64_t h = 0; h < head; ++h) offset += c.counts[static_cast<size_t>(h)];
  const int64_t count = c.counts[static_cast<size_t>(head)];
  const auto d = static_cast<double>(c.width);
  std::vector<double> out;
  for (int64_t t = 0; t < c.tokens; ++t) {
    const double* at = row(c, x, x_heads, sequence, head, t);
    const double half_norm = dot(at, at, c.width) / (2 * std::sqrt(d));
    for (int64_t m = 0; m < count; ++m) {
      const double inner =
          dot(c.z.data() + (offset + m) * c.width, at, c.width) / std::pow(d, 0.25);
      const double log_alpha = c.log_alpha[static_cast<size_t>(offset + m)];
      out.push_back(inner - half_norm + 0.5 * (log_alpha - std::log(static_cast<double>(count))));
    }
  }
  return out;
}

std::vector<double> log_kernel_hat(const AttentionCase& c, int64_t sequence, int64_t head) {
  const std::vector<double> q = log_features(c, c.q, c.heads, sequence, head);
  const std::vector<double> k = log_features(c, c.k, c.key_heads, sequence, head);
  const int64_t count = c.counts[static_cast<size_t>(head)];
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
        const double total = log_sum_exp(weights, i + 1);
        double* to = out.data() + ((b * c.tokens + i) * c.heads + h) * c.width;
        for (int64_t j = 0; j <= i; ++j) {
          const double weight = std::exp(weights[j] - total);
          const double* v = row(c, c.v, c.key_heads, b, h, j);
          for (int64_t d = 0; d < c.width; ++d) to[d] += weight * v[d];
        }
      }
    }
  }
  return out;
}

}  // namespace dofla::reference
