// The layerwise objectives of dofla/ops/feature_loss.h on a GPU: losses and gradients of
// features, fused over tiles of 64 × 64 pairs. No [T, T] matrix reaches device memory, nothing is
// allocated and nothing waits for the device. One device gives the same bits for the same input.
// docs/kernels.md, "Feature losses" and "Precision".
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "dofla/ops/cuda/head_rows.h"

namespace dofla::cuda {

enum class PairLoss { kSoftmax, kL2, kAttentionMse };

struct FeatureLossProblem {
  int64_t batch, heads, key_heads, tokens, width;  // heads ≤ kMostHeads, width ≤ kWidestHead
  int64_t sharing;        // query heads that share features: H/Hkv where untied, else 1
  const int64_t* counts;  // [H / sharing] on the host: M of every head that has features
  Element element;        // of q and k
  PairLoss loss;
  bool causal;          // query i sees the keys up to the end of its block; else all pairs
  int64_t block;        // a divisor of 64 and of the tokens; 1 unless causal
  float padded_rest;    // rows with a rest of at least this are padding
  bool sequence_scale;  // of l2: s from each head and sequence (L2Scale::kSequence), or 1
  bool subtract_norm;   // of the features
};

struct FeatureLossInputs {
  HeadRows q;                // [B, H, T, D]
  HeadRows k;                // [B, Hkv, T, D]
  const float* z;            // [ΣM, D]
  const float* log_alpha;    // [ΣM]
  const float* u;            // [sharing · ΣM, D] of untied features, or null
  const float* norm_weight;  // [Hkv] of untied features, or null
  const float* rest;         // [B, H, T]: ln of what rows hold beside their pairs, or null
};

struct FeatureLossOutputs {
  double* per_head;       // [H]
  float* grad_z;          // [ΣM, D]
  float* grad_log_alpha;  // [ΣM]
  float* grad_u;          // [sharing · ΣM, D], or null
  float* grad_norm;       // [Hkv], or null
};

// The bytes of device memory that feature_loss works in on the current device: about
// B T ΣM 16 bytes and, for q and k that are not bf16 rows of width 64 or 128 at multiples of 16
// bytes, a copy of them.
cudaError_t feature_loss_workspace(const FeatureLossProblem& problem,
                                   const FeatureLossInputs& inputs, int64_t* bytes);

// All pointers on the device, `workspace` aligned to 256 bytes. cudaErrorInvalidValue for sizes
// that are not supported; problem.counts is not needed after the call.
cudaError_t launch_feature_loss(const FeatureLossProblem& problem, const FeatureLossInputs& inputs,
                                const FeatureLossOutputs& outputs, void* workspace,
                                cudaStream_t stream);

}  // namespace dofla::cuda
