// docs/kernels.md, "Feature losses": K̂ is a sum of products of bounded factors, one matrix product
// for a block of queries. Vanished products are computed alone from their log features, unless they
// are negligible in their row. The gradients are two more matrix products, equation (5).
#include "dofla/ops/feature_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/feature_gradients.h"
#include "dofla/ops/cpu/feature_loss_factors.h"
#include "dofla/ops/cpu/feature_loss_row.h"
#include "dofla/ops/cpu/sgemm.h"
#include "dofla/ops/cpu/vector_rows.h"

namespace dofla::cpu {
namespace {

constexpr int64_t kBlock = 64;  // queries at a time: two tiles of [64, 1024] stay in a core's cache

// A pair below e^-25 of the largest of its row is negligible.
constexpr float kNegligible = 25.0f;

// K̂ may exceed the l2 scale by this much (as a logarithm) before the scale follows.
constexpr float kL2Headroom = 8.0f;

// One for each thread, reused from head to head.
struct Scratch {
  Side query, key;
  std::vector<float> query_gradient, key_gradient;  // [T, M]: of log φ̃
  std::vector<float> teacher, student;              // [kBlock, T + 1] and [kBlock, T]
  std::vector<float> logits, shift;                 // [T + 1] and [T]
  std::vector<int64_t> vanished;                    // [T]: the keys of vanished products
  std::vector<float> vanished_logs;                 // [T]: and their logarithms
  std::vector<float> block_sums;                    // [kBlock, M]
  std::vector<float> key_sums;                      // [T, M]: Σ_i Y_ij factor_im
};

struct Task {
  const HeadFeatures& features;
  const float* q;     // [T, D]
  const float* k;     // [T, D]
  const float* rest;  // [T], or null
  int64_t tokens;
  const FeatureLossOptions& options;
};

class HeadLoss {
 public:
  HeadLoss(const Task& task, Scratch& scratch) : task_(task), s_(scratch) {}

  double run() {
    const int64_t tokens = task_.tokens, count = task_.features.key.count;
    fill_sides(task_.features, task_.q, task_.k, tokens, s_.query, s_.key);
    for (std::vector<float>* gradient : {&s_.query_gradient, &s_.key_gradient})
      gradient->assign(static_cast<size_t>(tokens * count), 0.0f);
    s_.key_sums.assign(static_cast<size_t>(tokens * count), 0.0f);
    s_.shift = s_.key.peak;
    add_constant(-2 * kLift, tokens, s_.shift.data());
    s_.teacher.resize(static_cast<size_t>(kBlock * (tokens + 1)));
    s_.student.resize(static_cast<size_t>(kBlock * tokens));
    s_.logits.resize(static_cast<size_t>(tokens + 1));
    s_.vanished.resize(static_cast<size_t>(tokens));
    s_.vanished_logs.resize(static_cast<size_t>(tokens));
    s_.block_sums.resize(static_cast<size_t>(kBlock * count));
    for (int64_t first = 0; first < tokens; first += kBlock)
      block(first, std::min(first + kBlock, tokens));
    add_product(s_.key.factor.data(), s_.key_sums.data(), tokens * count, s_.key_gradient.data());
    return loss_;
  }

 private:
  int64_t visible(int64_t query) const {
    const int64_t block = task_.options.block;
    return task_.options.mask == PairMask::kCausal ? (query / block + 1) * block : task_.tokens;
  }
  bool is_padding(int64_t query) const {
    return task_.rest != nullptr && task_.rest[query] >= kPaddedRest;
  }
  // The l2 loss compares pairs one by one, so that what is exact adds nothing.
  bool has_rest(int64_t query) const {
    return task_.rest != nullptr && task_.options.kind != FeatureLossKind::kL2 &&
           task_.rest[query] != -std::numeric_limits<float>::infinity();
  }
  // What the row's loss is a sum over: the keys it sees and, last, the rest.
  int64_t terms(int64_t query) const { return visible(query) + has_rest(query); }
  // From one row of the teacher's logits to the next, with a place for the rest.
  int64_t teacher_step(int64_t keys) const { return keys + (task_.rest != nullptr); }

  // Queries [first, last) against every key they may see.
  void block(int64_t first, int64_t last) {
    const int64_t count = task_.features.key.count, width = task_.features.key.width;
    const int64_t rows = last - first, keys = visible(last - 1);
    const float* query = s_.query.factor.data() + first * count;
    const float* key = s_.key.factor.data();
    const auto root = static_cast<float>(1.0 / std::sqrt(static_cast<double>(width)));
    sgemm({.transpose_b = true, .alpha = root}, rows, keys, width, task_.q + first * width, width,
          task_.k, width, s_.teacher.data(), teacher_step(keys));
    sgemm({.transpose_b = true}, rows, keys, count, query, count, key, count, s_.student.data(),
          keys);
    for (int64_t i = first; i < last; ++i) row(i, first, keys);
    sgemm({}, rows, count, keys, s_.student.data(), keys, key, count, s_.block_sums.data(), count);
    add_product(query, s_.block_sums.data(), rows * count,
                s_.query_gradient.data() + first * count);
    sgemm({.transpose_a = true, .beta = 1}, keys, count, rows, s_.student.data(), keys, query,
          count, s_.key_sums.data(), count);
  }

  // Turns row i of the student's products into Y.
  void row(int64_t i, int64_t first, int64_t keys) {
    const int64_t n = visible(i);
    float* teacher = s_.teacher.data() + (i - first) * teacher_step(keys);
    float* product = s_.student.data() + (i - first) * keys;
    float* logits = s_.logits.data();
    if (is_padding(i)) {
      std::fill(product, product + keys, 0.0f);
      return;
    }
    const int64_t vanished =
        row_logits(product, s_.shift.data(), kSmallestProduct, logits, s_.vanished.data(), n);
    if (has_rest(i)) {  // the student's logits are without the query's peak
      teacher[n] = task_.rest[i];
      logits[n] = task_.rest[i] - s_.query.peak[static_cast<size_t>(i)];
    }
    const int64_t resolved = vanished == 0 ? 0 : resolve_vanished(teacher, i, vanished);
    const double loss = objective(teacher, logits, i, first, keys);  // may rescale loss_
    loss_ += loss;
    for (int64_t at = 0; at < resolved; ++at) add_gradient_of_vanished(i, at);
    for (int64_t at = 0; at < vanished; ++at) {
      const int64_t j = s_.vanished[static_cast<size_t>(at)];
      logits[j] = 0;
      product[j] = 1;
    }
    divide_row(logits, product, n);
    std::fill(product + n, product + keys, 0.0f);
  }

  // The logits of row i's vanished pairs from their logarithms. Where the pair is negligible for
  // teacher and student, the logit becomes its upper bound. Returns how many were computed, and
  // puts their keys first.
  int64_t resolve_vanished(const float* teacher, int64_t i, int64_t vanished) {
    const int64_t count = task_.features.key.count, n = terms(i);
    float* logits = s_.logits.data();
    for (int64_t at = 0; at < vanished; ++at)
      logits[s_.vanished[static_cast<size_t>(at)]] = -std::numeric_limits<float>::infinity();
    const float least_teacher = row_max(teacher, n) - kNegligible;
    const float least_student = row_max(logits, n) - kNegligible;
    int64_t resolved = 0;
    for (int64_t at = 0; at < vanished; ++at) {
      const int64_t j = s_.vanished[static_cast<size_t>(at)];
      const float bound = kLogSmallestProduct + s_.shift[static_cast<size_t>(j)];
      if (teacher[j] < least_teacher && bound < least_student) {
        logits[j] = bound;
        continue;
      }
      float& log = s_.vanished_logs[static_cast<size_t>(resolved)];
      log = log_sum_exp_of_sum(s_.query.logs.data() + i * count, s_.key.logs.data() + j * count,
                               count);
      logits[j] = log + s_.key.peak[static_cast<size_t>(j)];
      std::swap(s_.vanished[static_cast<size_t>(at)], s_.vanished[static_cast<size_t>(resolved++)]);
    }
    return resolved;
  }

  void add_gradient_of_vanished(int64_t i, int64_t at) {
    const int64_t count = task_.features.key.count, j = s_.vanished[static_cast<size_t>(at)];
    add_pair_gradient(s_.query.logs.data() + i * count, s_.key.logs.data() + j * count,
                      s_.vanished_logs[static_cast<size_t>(at)], s_.logits[static_cast<size_t>(j)],
                      s_.query_gradient.data() + i * count, s_.key_gradient.data() + j * count,
                      count);
  }

  // The loss of row i; its logits become H.
  double objective(float* teacher, float* logits, int64_t i, int64_t first, int64_t keys) {
    const int64_t n = terms(i);
    switch (task_.options.kind) {
      case FeatureLossKind::kSoftmax:
        return softmax_row(teacher, logits, n);
      case FeatureLossKind::kAttentionMse:
        return attention_mse_row(teacher, logits, n);
      case FeatureLossKind::kL2:
        break;
    }
    add_constant(s_.query.peak[static_cast<size_t>(i)], n, logits);
    if (task_.options.scale == L2Scale::kRaw) return l2_row(teacher, logits, 0.0f, n);
    const float wanted = std::max(row_max(teacher, n), row_max(logits, n) - kL2Headroom);
    if (wanted > log_scale_) raise_scale(wanted, i, first, keys);
    return l2_row(teacher, logits, log_scale_, n);
  }

  // The l2 scale is known only at the end: sums under a smaller one are rescaled.
  void raise_scale(float wanted, int64_t i, int64_t first, int64_t keys) {
    const float factor = std::exp(2 * (log_scale_ - wanted));
    const int64_t count = task_.features.key.count;
    log_scale_ = wanted;
    loss_ *= factor;
    scale_row(factor, i * count, s_.query_gradient.data());
    scale_row(factor, task_.tokens * count, s_.key_gradient.data());
    scale_row(factor, task_.tokens * count, s_.key_sums.data());
    scale_row(factor, (i - first) * keys, s_.student.data());
  }

  const Task& task_;
  Scratch& s_;
  double loss_ = 0;
  float log_scale_ = -std::numeric_limits<float>::infinity();
};

FeatureLoss feature_loss(const Tensor& q, const Tensor& k, const Features& features,
                         const FeatureLossOptions& options, const Tensor& rest) {
  const int64_t batch = q.size(0), heads = q.size(1), tokens = q.size(2), width = q.size(3);
  const int64_t key_heads = k.size(1);
  const std::vector<HeadFeatures> head = head_features(features);
  std::vector<Scratch> scratch(static_cast<size_t>(thread_count()));
  std::vector<double> loss(static_cast<size_t>(batch * heads));
  FeatureGradientParts gradients(features, batch);
  parallel_for(batch * heads, [&](int64_t index) {
    const int64_t sequence = index / heads, h = index % heads;
    const int64_t key_head = sequence * key_heads + h / (heads / key_heads);
    const Task task{head[static_cast<size_t>(h)],
                    q.data<float>() + index * tokens * width,
                    k.data<float>() + key_head * tokens * width,
                    rest.defined() ? rest.data<float>() + index * tokens : nullptr,
                    tokens,
                    options};
    Scratch& mine = scratch[static_cast<size_t>(omp_get_thread_num())];
    loss[static_cast<size_t>(index)] = HeadLoss(task, mine).run();
    gradients.take(sequence, h, task.features, task.q, mine.query_gradient.data(), task.k,
                   mine.key_gradient.data(), tokens);
  });
  FeatureLoss out;
  const double rows = static_cast<double>(batch) * static_cast<double>(tokens);
  out.per_head = Tensor::zeros({heads}, DType::kF64);
  double* per_head = out.per_head.data<double>();
  for (size_t i = 0; i < loss.size(); ++i)
    per_head[i % static_cast<size_t>(heads)] += loss[i] / rows;
  out.grad = gradients.sum(static_cast<float>(1 / rows));
  return out;
}

}  // namespace

const FeatureLossBackend kFeatureLoss = {.feature_loss = feature_loss};

}  // namespace dofla::cpu
