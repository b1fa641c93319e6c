#include "tests/reference/feature_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "dofla/core/random.h"
#include "tests/reference/compare.h"
#include "tests/reference/linear_attention.h"

namespace dofla::reference {
namespace {

// One row of the teacher's and the student's logits.
struct Row {
  double loss = 0, loss_sensitivity = 0;
  std::vector<double> gradient, gradient_sensitivity;  // of the student's logits
};

Row row_loss(FeatureLossKind kind, const double* teacher, const double* student, int64_t n,
             double log_scale) {
  const bool normalised = kind != FeatureLossKind::kL2;
  const double total = normalised ? log_sum_exp(teacher, n) : log_scale;
  const double total_hat = normalised ? log_sum_exp(student, n) : log_scale;
  Row out;
  double mean = 0, mean_sensitivity = 0;  // Σ p̂ (p̂ − p), for attention-mse only
  if (kind == FeatureLossKind::kAttentionMse) {
    for (int64_t j = 0; j < n; ++j) {
      const double p = std::exp(teacher[j] - total), p_hat = std::exp(student[j] - total_hat);
      mean += p_hat * (p_hat - p);
      mean_sensitivity += p_hat * (2 * p_hat + 2 * p);
    }
  }
  for (int64_t j = 0; j < n; ++j) {
    const double value = std::exp(teacher[j] - total), log_hat = student[j] - total_hat;
    const double hat = std::exp(log_hat), error = hat - value;
    if (kind == FeatureLossKind::kSoftmax) {
      out.loss -= value * log_hat;
      out.loss_sensitivity += value * (1 + std::abs(log_hat));
      out.gradient.push_back(error);
      out.gradient_sensitivity.push_back(value + hat);
    } else {
      out.loss += error * error;
      out.loss_sensitivity += 2 * std::abs(error) * (value + hat);
      out.gradient.push_back(2 * hat * (error - mean));
      out.gradient_sensitivity.push_back(2 * hat *
                                         (std::abs(error - mean) + value + hat + mean_sensitivity));
    }
  }
  return out;
}

void add_head(const AttentionCase& c, const FeatureLossOptions& options, int64_t b, int64_t h,
              const double* rest,  // [T], or null
              FeatureLossReference& out) {
  const std::vector<double> teacher = log_kernel(c, b, h), student = log_kernel_hat(c, b, h);
  LogFeatures query(c, FeatureSide::kQueries, b, h), key(c, FeatureSide::kKeys, b, h);
  const auto visible = [&](int64_t i) {
    if (options.kind == FeatureLossKind::kL2 && rest != nullptr && rest[i] >= kPaddedRest)
      return int64_t{0};
    return options.mask == PairMask::kCausal ? (i / options.block + 1) * options.block : c.tokens;
  };
  double log_scale = options.scale == L2Scale::kRaw ? 0 : -HUGE_VAL;
  if (options.scale == L2Scale::kSequence)
    for (int64_t i = 0; i < c.tokens; ++i)
      for (int64_t j = 0; j < visible(i); ++j) {
        const auto at = static_cast<size_t>(i * c.tokens + j);
        log_scale = std::max({log_scale, teacher[at], student[at] - 8});
      }
  for (int64_t i = 0; i < c.tokens; ++i) {
    const double* logits = student.data() + i * c.tokens;
    std::vector<double> of_teacher(teacher.data() + i * c.tokens,
                                   teacher.data() + i * c.tokens + visible(i));
    std::vector<double> of_student(logits, logits + visible(i));
    if (options.kind != FeatureLossKind::kL2 && rest != nullptr && rest[i] != -HUGE_VAL) {
      of_teacher.push_back(rest[i]);
      of_student.push_back(rest[i]);
    }
    const Row row = row_loss(options.kind, of_teacher.data(), of_student.data(),
                             static_cast<int64_t>(of_teacher.size()), log_scale);
    out.per_head.value[static_cast<size_t>(h)] += row.loss;
    out.per_head.sensitivity[static_cast<size_t>(h)] += std::pow(row.loss_sensitivity, 2);
    for (int64_t j = 0; j < visible(i); ++j) {
      const double gradient = row.gradient[static_cast<size_t>(j)];
      const double sensitivity = row.gradient_sensitivity[static_cast<size_t>(j)];
      for (int64_t m = 0; m < query.count; ++m) {
        const double share = std::exp(query.logs[static_cast<size_t>(i * query.count + m)] +
                                      key.logs[static_cast<size_t>(j * key.count + m)] - logits[j]);
        query.add(i, m, share, gradient, sensitivity);
        key.add(j, m, share, gradient, sensitivity);
      }
    }
  }
  out.grad.add(c, query);
  out.grad.add(c, key);
}

}  // namespace

double FeatureLossReference::total() const {
  return std::accumulate(per_head.value.begin(), per_head.value.end(), 0.0);
}

FeatureLossReference feature_loss(const AttentionCase& c, const FeatureLossOptions& options,
                                  const std::vector<double>& rest) {
  FeatureLossReference out{Sensitive(static_cast<size_t>(c.heads)), SensitiveFeatures(c)};
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads; ++h)
      add_head(c, options, b, h,
               rest.empty() ? nullptr : rest.data() + (b * c.heads + h) * c.tokens, out);
  const auto rows = static_cast<double>(c.batch * c.tokens);
  const auto finish = [&](Sensitive& part) {
    for (double& x : part.value) x /= rows;
    for (double& x : part.sensitivity) x = std::sqrt(x) / rows;
  };
  finish(out.per_head);
  for (const auto& [name, part] : feature_parts(out.grad)) finish(*part);
  return out;
}

std::vector<double> every_rest(const AttentionCase& c) {
  Random random(17);
  std::vector<double> out;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads; ++h) {
      const std::vector<double> teacher = log_kernel(c, b, h), student = log_kernel_hat(c, b, h);
      for (int64_t i = 0; i < c.tokens; ++i) {
        const double noise = 2 * random.normal();
        const double choice[] = {log_sum_exp(teacher.data() + i * c.tokens, i + 1) + noise,
                                 log_sum_exp(student.data() + i * c.tokens, i + 1) + noise,
                                 -HUGE_VAL, kPaddedRest, 5 * noise};
        out.push_back(static_cast<float>(choice[(b + h + i) % 5]));
      }
    }
  return out;
}

double pair_error(const AttentionCase& c) {
  constexpr double kEps = std::numeric_limits<float>::epsilon();
  double logit = 0;
  for (int64_t h = 0; h < c.heads; ++h)
    for (const double x : log_kernel(c, 0, h)) logit = std::max(logit, std::abs(x));
  const double teacher = kEps / 2 * (std::sqrt(static_cast<double>(c.width)) + 2) * logit;
  const auto most = static_cast<double>(*std::max_element(c.counts.begin(), c.counts.end()));
  const double sums = kEps * (std::sqrt(most) + std::sqrt(static_cast<double>(c.tokens)) + 4);
  return 2 * (2 * c.log_feature_error() + teacher + sums);
}

void expect_loss(const FeatureLoss& actual, const FeatureLossReference& expected, double relative,
                 const std::string& what) {
  const std::vector<double> per_head = to_doubles(actual.per_head);
  ASSERT_EQ(per_head.size(), expected.per_head.value.size());
  for (size_t h = 0; h < per_head.size(); ++h)
    EXPECT_NEAR(per_head[h], expected.per_head.value[h],
                relative * expected.per_head.sensitivity[h])
        << what << ", head " << h;
}

void expect_gradients(const FeatureLoss& actual, const FeatureLossReference& expected,
                      double relative, const std::string& what) {
  expect_feature_gradients(
      actual.grad, expected.grad,
      [&](double sensitivity, double most) {
        return relative * sensitivity + std::exp(-25) * most;
      },
      what);
}

}  // namespace dofla::reference
