// The objectives on single pairs and on rows of pairs. A pair consists of the teacher's logit
// log₂ K, the product S of its factors, and a shift such that K̂ = S · 2^shift.
#pragma once

#include "dofla/ops/cuda/feature_loss_plan.h"
#include "dofla/ops/cuda/tile_mma.cuh"

namespace dofla::cuda::feature_pairs {

// The logit of a masked pair: far below even kNothing.
constexpr float kMasked = -1e30f;

// The l2 scale, as base 2 logarithms (docs/kernels.md, "The scale of the l2 loss"). The final scale
// lets K̂ exceed it by kHeadroom. The running scale is set kMargin above what the pairs so far ask
// for, and raised when K exceeds it by kMostTeacher or K̂ by kMostStudent = e^11.
constexpr float kHeadroom = 8.0f * kLog2E;
constexpr float kMargin = 3.0f * kLog2E;
constexpr float kMostTeacher = 4.0f * kLog2E;
constexpr float kMostStudent = 59874.0f;

__device__ __forceinline__ float fast_log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What a row contributes to the weights of its pairs: p = 2^(teacher logit − teacher), and the
// shift of a pair is the key's peak plus `student`.
struct RowTerms {
  float teacher, student;
  float mean;  // attention-mse: Σ p̂ (p̂ − p)
};

struct PairSums {
  float loss = 0;               // of softmax to base 2
  float largest_qk = kNothing;  // l2
  float largest_student = 0;    // l2: K̂ / scale
};

// Y = ∂loss / ∂log K̂ / S of a pair, without the factor 2 of the squared losses. log₂ K is q·k times
// teacher_scale, log₂ K̂ is log₂ S + shift.
template <PairLoss kLoss>
__device__ __forceinline__ float pair_weight(float qk, float teacher_scale, float product,
                                             float shift, const RowTerms& row, PairSums& sums) {
  const float teacher = fast_exp2(qk * teacher_scale - row.teacher), scale = fast_exp2(shift);
  if constexpr (kLoss == PairLoss::kSoftmax) {
    sums.loss -= teacher * (fast_log2(product) + shift);
    return scale - __fdividef(teacher, product);
  } else {
    const float error = product * scale - teacher;
    sums.loss += error * error;
    if constexpr (kLoss == PairLoss::kAttentionMse) return (error - row.mean) * scale;
    sums.largest_qk = fmaxf(sums.largest_qk, qk);
    sums.largest_student = fmaxf(sums.largest_student, product * scale);
    return error * scale;
  }
}

// Sums over a row, relative to running maxima. With t a teacher's and s a student's logit,
// w = 2^(t − top) and v = 2^(s − top_hat).
template <PairLoss kLoss>
struct RowStatistics {
  float top = kNothing, sum = 0;          // Σ w
  float top_hat = kNothing, sum_hat = 0;  // Σ v
  float cross = 0, square = 0;            // attention-mse: Σ w v and Σ v²

  __device__ __forceinline__ void raise(float new_top, float new_top_hat) {
    const float down = fast_exp2(top - new_top), down_hat = fast_exp2(top_hat - new_top_hat);
    if constexpr (kLoss == PairLoss::kAttentionMse) {
      cross *= down * down_hat;
      square *= down_hat * down_hat;
    }
    sum *= down;
    sum_hat *= down_hat;
    top = new_top;
    top_hat = new_top_hat;
  }

  __device__ __forceinline__ void add_teacher(float t) { sum += fast_exp2(t - top); }

  __device__ __forceinline__ void add_student(float t, float s) {
    const float v = fast_exp2(s - top_hat);
    sum_hat += v;
    if constexpr (kLoss == PairLoss::kAttentionMse) {
      cross += fast_exp2(t - top) * v;
      square += v * v;
    }
  }

  __device__ __forceinline__ void merge(RowStatistics other) {
    const float new_top = fmaxf(top, other.top), new_top_hat = fmaxf(top_hat, other.top_hat);
    raise(new_top, new_top_hat);
    other.raise(new_top, new_top_hat);
    sum += other.sum;
    sum_hat += other.sum_hat;
    cross += other.cross;
    square += other.square;
  }

  // Over the four lanes that share a row; all of them get the same bits.
  __device__ __forceinline__ void merge_quad() {
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
      RowStatistics other;
      other.top = __shfl_xor_sync(0xffffffffu, top, step);
      other.sum = __shfl_xor_sync(0xffffffffu, sum, step);
      other.top_hat = __shfl_xor_sync(0xffffffffu, top_hat, step);
      other.sum_hat = __shfl_xor_sync(0xffffffffu, sum_hat, step);
      other.cross = __shfl_xor_sync(0xffffffffu, cross, step);
      other.square = __shfl_xor_sync(0xffffffffu, square, step);
      merge(other);
    }
  }

  __device__ __forceinline__ RowTerms terms() const {
    RowTerms row{top + fast_log2(sum), -(top_hat + fast_log2(sum_hat)), 0.0f};
    if constexpr (kLoss == PairLoss::kAttentionMse)
      row.mean = square / (sum_hat * sum_hat) - cross / (sum * sum_hat);
    return row;
  }
};

}  // namespace dofla::cuda::feature_pairs
