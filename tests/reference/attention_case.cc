#include "tests/reference/attention_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "dofla/checkpoint/safetensors.h"
#include "dofla/core/random.h"

namespace dofla::reference {
namespace {

double largest_row_norm(const std::vector<double>& x, int64_t width) {
  double largest = 0;
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(width)) {
    double square = 0;
    for (int64_t i = 0; i < width; ++i) square += std::pow(x[row + static_cast<size_t>(i)], 2);
    largest = std::max(largest, std::sqrt(square));
  }
  return largest;
}

double largest_inner_product(const std::vector<double>& x, const std::vector<double>& y,
                             int64_t width) {
  double largest = 0;
  const auto step = static_cast<size_t>(width);
  for (size_t i = 0; i < x.size(); i += step)
    for (size_t j = 0; j < y.size(); j += step)
      largest = std::max(largest, std::abs(std::inner_product(&x[i], &x[i] + step, &y[j], 0.0)));
  return largest;
}

std::vector<double> normal(Random& random, int64_t count, double scale) {
  std::vector<double> out(static_cast<size_t>(count));
  for (double& x : out) x = static_cast<float>(scale * random.normal());
  return out;
}

}  // namespace

std::vector<double> to_doubles(const Tensor& tensor) {
  const Tensor wide = tensor.to(DType::kF64);
  const double* data = wide.data<double>();
  return {data, data + wide.count()};
}

Tensor to_tensor(const std::vector<double>& values, const Shape& shape) {
  Tensor out(shape);
  require(out.count() == static_cast<int64_t>(values.size()), "to_tensor: wrong element count");
  std::transform(values.begin(), values.end(), out.data<float>(),
                 [](double x) { return static_cast<float>(x); });
  return out;
}

Tensor AttentionCase::q_tensor() const {
  return to_tensor(q, {batch, heads, tokens, width});
}
Tensor AttentionCase::k_tensor() const {
  return to_tensor(k, {batch, key_heads, tokens, width});
}
Tensor AttentionCase::v_tensor() const {
  return to_tensor(v, {batch, key_heads, tokens, width});
}

Features AttentionCase::features() const {
  const auto total = static_cast<int64_t>(log_alpha.size());
  Features out = {counts, to_tensor(z, {total, width}), to_tensor(log_alpha, {total})};
  if (!untied()) return out;
  out.u = to_tensor(u, {static_cast<int64_t>(u.size()) / width, width});
  out.norm_weight = to_tensor(norm_weight, {key_heads});
  return out;
}

size_t AttentionCase::feature_head(int64_t head) const {
  return static_cast<size_t>(untied() ? head / (heads / key_heads) : head);
}

int64_t AttentionCase::offset(int64_t head) const {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<int64_t>(feature_head(head)),
                         int64_t{0});
}

int64_t AttentionCase::query_offset(int64_t head) const {
  int64_t rows = 0;
  for (int64_t h = 0; h < head; ++h) rows += count(h);
  return rows;
}

double AttentionCase::largest_norm() const {
  return std::max(largest_row_norm(q, width), largest_row_norm(k, width));
}

double AttentionCase::largest_value() const {
  double largest = 0;
  for (const double x : v) largest = std::max(largest, std::abs(x));
  return largest;
}

double AttentionCase::log_feature_error() const {
  const double unit_roundoff = std::numeric_limits<float>::epsilon() / 2;
  const auto d = static_cast<double>(width);
  double inner = 0;
  for (const std::vector<double>* x : {&q, &k})
    inner = std::max(inner, largest_inner_product(*x, z, width) / std::pow(d, 0.25));
  inner = std::max(inner, largest_inner_product(q, u, width) / std::pow(d, 0.25));
  double half_norm = largest_norm() * largest_norm() / (2 * std::sqrt(d));
  double most_weight = 1;
  for (const double x : norm_weight) most_weight = std::max(most_weight, std::abs(x));
  half_norm *= most_weight;
  double offset = std::log(static_cast<double>(*std::max_element(counts.begin(), counts.end())));
  for (const double x : log_alpha) offset = std::max(offset, std::abs(x));
  return unit_roundoff * (std::sqrt(d) + 2) * (inner + half_norm + offset);
}

AttentionCase random_case(const CaseOptions& options) {
  AttentionCase out;
  out.batch = options.batch;
  out.heads = static_cast<int64_t>(options.counts.size());
  out.key_heads = options.key_heads;
  if (options.group > 0) {
    out.key_heads = out.heads;
    out.heads *= options.group;
  }
  out.tokens = options.tokens;
  out.width = options.width;
  out.block = options.block;
  out.counts = options.counts;
  const int64_t rows = options.batch * options.tokens * options.width;
  const int64_t total = std::accumulate(out.counts.begin(), out.counts.end(), int64_t{0});
  Random random(options.seed);
  out.q = normal(random, rows * out.heads, options.query_scale);
  out.k = normal(random, rows * out.key_heads, options.key_scale);
  out.v = normal(random, rows * out.key_heads, 1);
  out.z = normal(random, total * out.width, 1);
  out.log_alpha = normal(random, total, 0.3);
  if (options.group > 0) {
    out.u = normal(random, options.group * total * out.width, 1);
    out.norm_weight = normal(random, out.key_heads, 0.3);
    for (double& weight : out.norm_weight) weight = static_cast<float>(weight + 0.8);
  }
  return out;
}

AttentionCase untied_near(const AttentionCase& tied) {
  require(tied.heads == tied.key_heads, "untied_near: {} heads share {} key heads", tied.heads,
          tied.key_heads);
  AttentionCase out = tied;
  Random random(5);
  const std::vector<double> apart = normal(random, static_cast<int64_t>(tied.z.size()), 0.1);
  out.u = tied.z;
  for (size_t i = 0; i < apart.size(); ++i) out.u[i] = static_cast<float>(out.u[i] + apart[i]);
  for (int64_t h = 0; h < tied.heads; ++h)
    out.norm_weight.push_back(static_cast<float>(1 - 0.03 * static_cast<double>(h)));
  return out;
}

AttentionCase keys_that_grow() {
  AttentionCase c = random_case({.tokens = 96, .width = 16, .counts = {12}});
  for (int64_t t = 0; t < c.tokens; ++t)
    for (int64_t d = 0; d < c.width; ++d)
      c.k[static_cast<size_t>(t * c.width + d)] *= static_cast<float>(t < 32   ? 30
                                                                      : t < 64 ? 12
                                                                               : 1);
  return c;
}

AttentionCase fixture_case(const fs::path& file) {
  const Safetensors in(file);
  const Tensor q = in.tensor("q"), k = in.tensor("k"), log_alpha = in.tensor("log_alpha");
  AttentionCase out;
  out.batch = q.size(0);
  out.heads = q.size(1);
  out.key_heads = k.size(1);
  out.tokens = q.size(2);
  out.width = q.size(3);
  out.counts.assign(static_cast<size_t>(log_alpha.size(0)), log_alpha.size(1));
  out.q = to_doubles(q);
  out.k = to_doubles(k);
  out.v = to_doubles(in.tensor("v"));
  out.z = to_doubles(in.tensor("z"));
  out.log_alpha = to_doubles(log_alpha);
  return out;
}

}  // namespace dofla::reference
