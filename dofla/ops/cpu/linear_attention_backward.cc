// docs/kernels.md, "The backward sweeps", equations (7) and (8): a forward sweep computes the
// gradients of queries, which sum over earlier keys, and a backward sweep those of keys and values,
// which sum over later queries.
#include <algorithm>
#include <cmath>
#include <limits>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/feature_gradients.h"
#include "dofla/ops/cpu/linear_attention_chunk.h"
#include "dofla/ops/cpu/sgemm.h"
#include "dofla/ops/cpu/vector_rows.h"
#include "dofla/ops/heads.h"
#include "dofla/ops/linear_attention.h"

namespace dofla::cpu {
namespace {

// A chunk is split when a later key, seen from an earlier query's scale, exceeds e^60.
constexpr float kLargestLogKey = 60.0f;

// One query head of one sequence.
struct HeadInputs {
  const float *q, *k, *v;  // [T, D]
  const float* g;          // grad_out, row t at g + t · stride
  const float* out;        // of the tape, row t at out + t · stride; null without a tape
  const float* log_sum;    // [T], of the tape
  int64_t stride, tokens;
};

std::vector<float> floats(int64_t count, float value = 0.0f) {
  return std::vector<float>(static_cast<size_t>(count), value);
}

class HeadBackward {
 public:
  HeadBackward(const HeadFeatures& features, const HeadInputs& in, int64_t chunk, int64_t block)
      : f_(features),
        in_(in),
        tokens_(in.tokens),
        chunk_(std::min(chunk, in.tokens)),
        block_(block),
        count_(features.key.count),
        width_(features.key.width) {}

  void run(float* grad_q, float* grad_k, float* grad_v) {
    log_features_without_norm(f_.query, in_.q, tokens_, log_q_.data());
    log_features(f_.key, in_.k, tokens_, log_k_.data());
    for (int64_t at = 0; at < tokens_; at += chunk_)
      sweep_queries(at, std::min(at + chunk_, tokens_));
    clear_sums();
    for (int64_t end = tokens_; end > 0; end -= std::min(end, chunk_))
      sweep_keys(std::max(end - chunk_, int64_t{0}), end, grad_v);
    finish(grad_q, grad_k);
  }

  // Of log φ̃, [T, M].
  const float* of_log_q() const { return grad_q_.data(); }
  const float* of_log_k() const { return grad_k_.data(); }

 private:
  HeadState sums() { return {log_max_.data(), a_.data(), b_.data(), count_, width_}; }

  void clear_sums() {
    std::fill(log_max_.begin(), log_max_.end(), -std::numeric_limits<float>::infinity());
    std::fill(a_.begin(), a_.end(), 0.0f);
    std::fill(b_.begin(), b_.end(), 0.0f);
  }

  // Queries of tokens [first, last): their gradients, e, and ψ in place of log φ̃(q).
  void sweep_queries(int64_t first, int64_t last) {
    const int64_t rows = last - first;
    float* log_q = log_q_.data() + first * count_;
    const float* v = in_.v + first * width_;
    HeadState state = sums();
    factor_chunk_keys(state, log_k_.data() + first * count_, rows, keys_);
    if (!factor_chunk_queries(keys_, log_q, rows, block_, queries_)) {
      const int64_t middle = first + half_of_blocks(rows, block_);
      sweep_queries(first, middle);
      return sweep_queries(middle, last);
    }
    decay_state(keys_, state);
    const float* out = in_.out == nullptr ? out_.data() : in_.out + first * in_.stride;
    const int64_t out_stride = in_.out == nullptr ? width_ : in_.stride;
    if (in_.out == nullptr) chunk_output(state, queries_, v, rows, out_.data(), width_);
    const float* g = in_.g + first * in_.stride;
    float* gradient = grad_q_.data() + first * count_;
    sgemm({.transpose_b = true}, rows, rows, width_, g, in_.stride, v, width_, pair_.data(), rows);
    sgemm({.transpose_b = true}, rows, count_, width_, g, in_.stride, b_.data(), width_, gradient,
          count_);
    for (int64_t i = 0; i < rows; ++i) {
      const float e = dot(g + i * in_.stride, out + i * out_stride, width_);
      const int64_t seen = (i / block_ + 1) * block_;
      e_[static_cast<size_t>(first + i)] = e;
      add_constant(-e, seen, pair_.data() + i * rows);
      std::fill(pair_.data() + i * rows + seen, pair_.data() + (i + 1) * rows, 0.0f);
      add_scaled(a_.data(), -e, count_, gradient + i * count_);
    }
    sgemm({.beta = 1}, rows, count_, rows, pair_.data(), rows, keys_.key.data(), count_, gradient,
          count_);
    for (int64_t i = 0; i < rows; ++i) {
      const float own = queries_.log_sum(i);
      const float log_total = in_.out == nullptr ? own : in_.log_sum[first + i];
      const float share = std::exp(own - log_total);  // of this attention in the tape's
      scale_row(share / queries_.denominator[static_cast<size_t>(i)], count_,
                gradient + i * count_);
      multiply(queries_.query.data() + i * count_, count_, gradient + i * count_);
      add_constant(-log_total, count_, log_q + i * count_);
    }
    absorb_chunk(keys_, v, rows, state);
  }

  // Keys and values of tokens [first, last), after all later ones. The sums now run over queries:
  // log_max of log ψ, a of ψ e, b of ψ g.
  void sweep_keys(int64_t first, int64_t last, float* grad_v) {
    const int64_t rows = last - first;
    if (!factor_keys(first, rows)) {
      const int64_t middle = first + half_of_blocks(rows, block_);
      sweep_keys(middle, last, grad_v);
      return sweep_keys(first, middle, grad_v);
    }
    HeadState state = sums();
    decay_state(keys_, state);
    const float* g = in_.g + first * in_.stride;
    const float* v = in_.v + first * width_;
    const float* e = e_.data() + first;
    const float* psi = queries_.query.data();
    const float* key = keys_.key.data();
    float* weight = queries_.weight.data();
    float* gradient = grad_k_.data() + first * count_;
    sgemm({.transpose_b = true}, rows, rows, count_, key, count_, psi, count_, weight, rows);
    sgemm({.transpose_b = true}, rows, rows, width_, v, width_, g, in_.stride, pair_.data(), rows);
    sgemm({.transpose_b = true}, rows, count_, width_, v, width_, b_.data(), width_, gradient,
          count_);
    for (int64_t j = 0; j < rows; ++j) {
      const int64_t unseen = j / block_ * block_;  // queries before the first that sees the key
      std::fill_n(weight + j * rows, unseen, 0.0f);
      std::fill_n(pair_.data() + j * rows, unseen, 0.0f);
      add_scaled(e + unseen, -1.0f, rows - unseen, pair_.data() + j * rows + unseen);
      add_scaled(a_.data(), -1.0f, count_, gradient + j * count_);
    }
    sgemm({.beta = 1}, rows, count_, rows, pair_.data(), rows, psi, count_, gradient, count_);
    multiply(key, rows * count_, gradient);
    float* to = grad_v + first * width_;
    sgemm({}, rows, width_, count_, key, count_, b_.data(), width_, to, width_);
    sgemm({.beta = 1}, rows, width_, rows, weight, rows, g, in_.stride, to, width_);

    for (int64_t i = 0; i < rows; ++i) add_scaled(psi + i * count_, e[i], count_, a_.data());
    sgemm({.transpose_a = true, .beta = 1}, count_, width_, rows, psi, count_, g, in_.stride,
          b_.data(), width_);
  }

  // ψ and φ̃(k) as factors, relative to the largest log ψ_m of the chunk and of all later queries.
  // False when a key's factor would be too large, which takes an earlier query in the chunk.
  bool factor_keys(int64_t first, int64_t rows) {
    float* peak = keys_.peak.data();
    std::copy_n(log_max_.data(), count_, peak);
    const float* log_psi = log_q_.data() + first * count_;
    const float* log_k = log_k_.data() + first * count_;
    for (int64_t i = 0; i < rows; ++i) keep_larger(log_psi + i * count_, count_, peak);
    for (int64_t i = 0; i < rows; ++i) {
      if (rows > block_ && max_of_sum(log_k + i * count_, peak, count_) > kLargestLogKey)
        return false;
      exp_of_sum(log_k + i * count_, peak, 0.0f, count_, keys_.key.data() + i * count_);
      exp_of_difference(log_psi + i * count_, peak, count_, queries_.query.data() + i * count_);
    }
    exp_of_difference(log_max_.data(), peak, count_, keys_.decay.data());
    std::copy_n(a_.data(), count_, keys_.faded.data());
    multiply(keys_.decay.data(), count_, keys_.faded.data());
    return true;
  }

  // From log features to q and k. A row's factor exp(−|q|²/(2√d)) cancels in the output,
  // so its gradient is 0; that of a key does not.
  void finish(float* grad_q, float* grad_k) {
    const Sgemm how{.alpha = f_.key.inner_scale};
    sgemm(how, tokens_, width_, count_, grad_q_.data(), count_, f_.query.directions, width_, grad_q,
          width_);
    sgemm(how, tokens_, width_, count_, grad_k_.data(), count_, f_.key.directions, width_, grad_k,
          width_);
    for (int64_t j = 0; j < tokens_; ++j)
      add_scaled(in_.k + j * width_,
                 -2 * f_.key.norm_scale * row_sum(grad_k_.data() + j * count_, count_), width_,
                 grad_k + j * width_);
  }

  const HeadFeatures& f_;
  const HeadInputs in_;
  const int64_t tokens_, chunk_, block_, count_, width_;

  std::vector<float> log_q_ = floats(tokens_ * count_), log_k_ = floats(tokens_ * count_);
  std::vector<float> grad_q_ = floats(tokens_ * count_), grad_k_ = floats(tokens_ * count_);
  std::vector<float> e_ = floats(tokens_);
  std::vector<float> log_max_ = floats(count_, -std::numeric_limits<float>::infinity());
  std::vector<float> a_ = floats(count_), b_ = floats(count_ * width_);
  std::vector<float> out_ = floats(chunk_ * width_), pair_ = floats(chunk_ * chunk_);
  KeyFactors keys_{chunk_, count_};
  QueryFactors queries_{chunk_, count_};
};

}  // namespace

LinearAttentionGradients linear_attention_backward(const Tensor& q, const Tensor& k,
                                                   const Tensor& v, const Features& features,
                                                   const Tensor& grad_out, int64_t chunk,
                                                   const AttentionTape& tape,
                                                   const GradientBuffers& buffers, int64_t block) {
  const int64_t batch = q.size(0), heads = q.size(1), tokens = q.size(2), width = q.size(3);
  const int64_t key_heads = k.size(1);
  const std::vector<HeadFeatures> head = head_features(features);
  Tensor grad_q(q.shape()), grad_k(q.shape()), grad_v(q.shape());
  FeatureGradientParts parts(features, batch);
  float* const to[] = {grad_q.data<float>(), grad_k.data<float>(), grad_v.data<float>()};
  parallel_for(tokens == 0 ? 0 : batch * heads, [&](int64_t index) {
    const int64_t sequence = index / heads, h = index % heads, size = tokens * width;
    const int64_t key_head = sequence * key_heads + h / (heads / key_heads);
    const int64_t row =
        (sequence * tokens * heads + h) * width;  // the head's first, of [B, T, H, D]
    const bool taped = tape.log_sum.defined();
    const HeadFeatures& own = head[static_cast<size_t>(h)];
    const HeadInputs in = {.q = q.data<float>() + index * size,
                           .k = k.data<float>() + key_head * size,
                           .v = v.data<float>() + key_head * size,
                           .g = grad_out.data<float>() + row,
                           .out = taped ? tape.out.data<float>() + row : nullptr,
                           .log_sum = taped ? tape.log_sum.data<float>() + index * tokens : nullptr,
                           .stride = heads * width,
                           .tokens = tokens};
    HeadBackward backward(own, in, chunk, block);
    backward.run(to[0] + index * size, to[1] + index * size, to[2] + index * size);
    parts.take(sequence, h, own, in.q, backward.of_log_q(), in.k, backward.of_log_k(), tokens);
  });
  LinearAttentionGradients gradients = {grad_q, sum_over_groups(grad_k, key_heads),
                                        sum_over_groups(grad_v, key_heads), parts.sum(1.0f)};
  move_into(buffers.q, gradients.q);
  move_into(buffers.k, gradients.k);
  move_into(buffers.v, gradients.v);
  return gradients;
}

}  // namespace dofla::cpu
