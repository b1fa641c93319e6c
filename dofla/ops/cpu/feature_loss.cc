// For a pair (i, j) the kernel is a product of bounded factors,
//   K̂_ij = exp(peak_i + peak_j) Σ_m factor_im factor_jm,   factor_im = φ̃_m(x_i) / exp(peak_i),
// with peak_i the row's own largest log φ̃: a shift that depends on no other row, so that it is
// exact under any mask. The sums are one matrix product for a block of queries. A pair whose
// factors nowhere meet, so that its sum vanishes, is computed alone from its log features.
//
// With H_ij = ∂loss / ∂log K̂_ij, the gradients of the log features are
//   ∂loss / ∂log φ̃_m(q_i) = factor_im Σ_j Y_ij factor_jm,   Y_ij = H_ij / Σ_m factor_im factor_jm,
// and the same over i for the keys: two more matrix products.
#include "dofla/ops/cpu/feature_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/feature_loss_row.h"
#include "dofla/ops/cpu/positive_features.h"
#include "dofla/ops/cpu/sgemm.h"
#include "dofla/ops/cpu/vector_rows.h"

namespace dofla::cpu {
namespace {

constexpr int64_t kBlock = 64;  // queries at a time: two tiles of [64, 1024] stay in a core's cache

// Factors reach up to e^30 and vanish below e^-87. A product of at least e^-25 has lost nothing:
// a term with a vanished factor is below e^-57.
constexpr float kLift = 30.0f;
constexpr float kSmallestProduct = 1.3888e-11f;

// K̂ may exceed the l2 scale by this much (as a logarithm) before the scale follows.
constexpr float kL2Headroom = 8.0f;

// The queries or the keys of one head and sequence.
struct Side {
  void resize(int64_t tokens, int64_t count) {
    const auto n = static_cast<size_t>(tokens), m = static_cast<size_t>(count);
    peak.resize(n);
    logs.resize(n * m);
    factor.resize(n * m);
    gradient.assign(n * m, 0.0f);
  }

  std::vector<float> peak;      // [T]
  std::vector<float> logs;      // [T, M]: log φ̃ − peak
  std::vector<float> factor;    // [T, M]: exp(logs + kLift)
  std::vector<float> gradient;  // [T, M]: of log φ̃
};

// One for each thread, reused from head to head.
struct Scratch {
  Side query, key;
  std::vector<float> teacher, student;  // [kBlock, T]
  std::vector<float> logits, shift;     // [T]
  std::vector<int64_t> small;           // [T]
  std::vector<float> block_sums;        // [kBlock, M]
  std::vector<float> key_sums;          // [T, M]: Σ_i Y_ij factor_im
};

struct Task {
  const HeadFeatures& features;
  const float* q;  // [T, D]
  const float* k;  // [T, D]
  int64_t tokens;
  const FeatureLossOptions& options;
};

void fill_side(const HeadFeatures& features, const float* x, int64_t tokens, Side& side) {
  const int64_t count = features.count;
  side.resize(tokens, count);
  log_features_without_norm(features, x, tokens, side.logs.data());
  half_norms(features, x, tokens, side.peak.data());
  for (int64_t t = 0; t < tokens; ++t) {
    float* logs = side.logs.data() + t * count;
    const float top = row_max(logs, count);
    add_constant(-top, count, logs);
    exp_shifted(logs, kLift, count, side.factor.data() + t * count);
    side.peak[static_cast<size_t>(t)] = top - side.peak[static_cast<size_t>(t)];
  }
}

class HeadLoss {
 public:
  HeadLoss(const Task& task, Scratch& scratch) : task_(task), s_(scratch) {}

  double run() {
    const int64_t tokens = task_.tokens, count = task_.features.count;
    fill_side(task_.features, task_.q, tokens, s_.query);
    fill_side(task_.features, task_.k, tokens, s_.key);
    s_.key_sums.assign(static_cast<size_t>(tokens * count), 0.0f);
    s_.shift = s_.key.peak;
    add_constant(-2 * kLift, tokens, s_.shift.data());
    s_.teacher.resize(static_cast<size_t>(kBlock * tokens));
    s_.student.resize(static_cast<size_t>(kBlock * tokens));
    s_.logits.resize(static_cast<size_t>(tokens));
    s_.small.resize(static_cast<size_t>(tokens));
    s_.block_sums.resize(static_cast<size_t>(kBlock * count));
    for (int64_t first = 0; first < tokens; first += kBlock)
      block(first, std::min(first + kBlock, tokens));
    add_product(s_.key.factor.data(), s_.key_sums.data(), tokens * count, s_.key.gradient.data());
    return loss_;
  }

 private:
  int64_t visible(int64_t query) const {
    return task_.options.mask == PairMask::kCausal ? query + 1 : task_.tokens;
  }

  // Queries [first, last) against every key they may see.
  void block(int64_t first, int64_t last) {
    const int64_t count = task_.features.count, width = task_.features.width;
    const int64_t rows = last - first, keys = visible(last - 1);
    const float* query = s_.query.factor.data() + first * count;
    const float* key = s_.key.factor.data();
    const auto root = static_cast<float>(1.0 / std::sqrt(static_cast<double>(width)));
    sgemm({.transpose_b = true, .alpha = root}, rows, keys, width, task_.q + first * width, width,
          task_.k, width, s_.teacher.data(), keys);
    sgemm({.transpose_b = true}, rows, keys, count, query, count, key, count, s_.student.data(),
          keys);
    for (int64_t i = first; i < last; ++i) row(i, first, keys);
    sgemm({}, rows, count, keys, s_.student.data(), keys, key, count, s_.block_sums.data(), count);
    add_product(query, s_.block_sums.data(), rows * count,
                s_.query.gradient.data() + first * count);
    sgemm({.transpose_a = true, .beta = 1}, keys, count, rows, s_.student.data(), keys, query,
          count, s_.key_sums.data(), count);
  }

  // Turns row i of the student's products into Y.
  void row(int64_t i, int64_t first, int64_t keys) {
    const int64_t count = task_.features.count, n = visible(i);
    float* teacher = s_.teacher.data() + (i - first) * keys;
    float* product = s_.student.data() + (i - first) * keys;
    float* logits = s_.logits.data();
    const float* log_query = s_.query.logs.data() + i * count;
    const int64_t small =
        row_logits(product, s_.shift.data(), kSmallestProduct, logits, s_.small.data(), n);
    for (int64_t at = 0; at < small; ++at) {
      const int64_t j = s_.small[static_cast<size_t>(at)];
      logits[j] = log_sum_exp_of_sum(log_query, s_.key.logs.data() + j * count, count) +
                  s_.key.peak[static_cast<size_t>(j)];
    }
    const double loss = objective(teacher, logits, i, first, keys);  // may rescale loss_
    loss_ += loss;
    for (int64_t at = 0; at < small; ++at) {
      const int64_t j = s_.small[static_cast<size_t>(at)];
      const float* log_key = s_.key.logs.data() + j * count;
      add_pair_gradient(log_query, log_key, log_sum_exp_of_sum(log_query, log_key, count),
                        logits[j], s_.query.gradient.data() + i * count,
                        s_.key.gradient.data() + j * count, count);
      logits[j] = 0;
      product[j] = 1;
    }
    divide_row(logits, product, n);
    std::fill(product + n, product + keys, 0.0f);
  }

  // The loss of row i; its logits become H.
  double objective(float* teacher, float* logits, int64_t i, int64_t first, int64_t keys) {
    const int64_t n = visible(i);
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

  // The l2 scale is known only at the end: what was summed under a smaller one is brought up to it.
  void raise_scale(float wanted, int64_t i, int64_t first, int64_t keys) {
    const float factor = std::exp(2 * (log_scale_ - wanted));
    const int64_t count = task_.features.count;
    log_scale_ = wanted;
    loss_ *= factor;
    scale_row(factor, i * count, s_.query.gradient.data());
    scale_row(factor, task_.tokens * count, s_.key.gradient.data());
    scale_row(factor, task_.tokens * count, s_.key_sums.data());
    scale_row(factor, (i - first) * keys, s_.student.data());
  }

  const Task& task_;
  Scratch& s_;
  double loss_ = 0;
  float log_scale_ = -std::numeric_limits<float>::infinity();
};

}  // namespace

FeatureLoss feature_loss(const Tensor& q, const Tensor& k, const Features& features,
                         const FeatureLossOptions& options) {
  const int64_t batch = q.size(0), heads = q.size(1), tokens = q.size(2), width = q.size(3);
  const int64_t key_heads = k.size(1), total = features.total();
  const std::vector<HeadFeatures> head = head_features(features);
  const std::vector<int64_t> offsets = features.offsets();
  std::vector<Scratch> scratch(static_cast<size_t>(thread_count()));
  std::vector<double> loss(static_cast<size_t>(batch * heads));
  Tensor grad_z = Tensor::zeros({batch, total, width});
  Tensor grad_log_alpha = Tensor::zeros({batch, total});
  parallel_for(batch * heads, [&, to_z = grad_z.data<float>(),
                               to_log_alpha = grad_log_alpha.data<float>()](int64_t index) {
    const int64_t sequence = index / heads, h = index % heads;
    const int64_t key_head = sequence * key_heads + h / (heads / key_heads);
    const Task task{head[static_cast<size_t>(h)], q.data<float>() + index * tokens * width,
                    k.data<float>() + key_head * tokens * width, tokens, options};
    Scratch& mine = scratch[static_cast<size_t>(omp_get_thread_num())];
    loss[static_cast<size_t>(index)] = HeadLoss(task, mine).run();
    const int64_t feature = sequence * total + offsets[static_cast<size_t>(h)];
    add_feature_gradients(task.features, task.q, mine.query.gradient.data(), tokens,
                          to_z + feature * width, to_log_alpha + feature);
    add_feature_gradients(task.features, task.k, mine.key.gradient.data(), tokens,
                          to_z + feature * width, to_log_alpha + feature);
  });
  FeatureLoss out;
  const double rows = static_cast<double>(batch) * static_cast<double>(tokens);
  out.per_head = Tensor::zeros({heads}, DType::kF64);
  double* per_head = out.per_head.data<double>();
  for (size_t i = 0; i < loss.size(); ++i)
    per_head[i % static_cast<size_t>(heads)] += loss[i] / rows;
  out.grad_z = sum_over_batch(grad_z, static_cast<float>(1 / rows));
  out.grad_log_alpha = sum_over_batch(grad_log_alpha, static_cast<float>(1 / rows));
  return out;
}

}  // namespace dofla::cpu
