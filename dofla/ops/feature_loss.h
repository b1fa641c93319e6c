// The layerwise objectives: how far K̂(q, k) = Σ_m φ̃_m(q) φ̃_m(k) is from K(q, k) = exp(q·k/√d) on
// the queries and keys of a layer, with gradients of the features. With p and p̂ the rows of K and K̂
// divided by their sums, and every sum over the pairs that the mask keeps,
//   softmax        −1/(B T) Σ p log p̂
//   l2              1/(B T) Σ (K − K̂)² / s²
//   attention-mse   1/(B T) Σ (p − p̂)²
// A row may hold more than these pairs: `rest` is the log of what its sum of K holds beside them,
// which the student's sum of K̂ holds too. It counts as one more pair of the row, exact in both
// (docs/kernels.md, "A rest that is exact").
// Fused over tiles: memory O(T M) for each core. Finite for every finite q and k. On a GPU q and k
// may be views.
#pragma once

#include "dofla/ops/features.h"

namespace dofla {

enum class FeatureLossKind { kSoftmax, kL2, kAttentionMse };

enum class PairMask { kCausal, kFull };  // keys up to the query's block, or all pairs

// The s of the l2 loss, a constant to the gradients. kSequence takes the largest K of each head and
// sequence (or K̂ / e⁸, should that be larger: features far off the mark then give a large loss
// instead of an infinite one). kRaw is s = 1, which overflows once q·k/√d passes 40.
enum class L2Scale { kSequence, kRaw };

struct FeatureLossOptions {
  FeatureLossKind kind = FeatureLossKind::kSoftmax;
  PairMask mask = PairMask::kCausal;
  L2Scale scale = L2Scale::kSequence;
  // With kCausal, query i sees the keys j of j / block <= i / block: 1, or another divisor of 64
  // that divides T.
  int64_t block = 1;
};

// A row with a rest of at least this is padding: it counts for nothing, whatever the loss.
constexpr float kPaddedRest = 1e4f;

struct FeatureLoss {
  Tensor per_head;  // [H] in F64, a query head each
  FeatureGradients grad;

  double total() const;  // the sum over heads, which the gradients belong to
};

FeatureLoss feature_loss(const Tensor& q,  // [B, H, T, D]
                         const Tensor& k,  // [B, Hkv, T, D]
                         const Features& features, const FeatureLossOptions& options = {},
                         const Tensor& rest = {});  // [B, H, T] F32, −∞ for none; or undefined

// What a device has to implement; ops/feature_loss.cc checks the arguments and picks the device.
struct FeatureLossBackend {
  decltype(&dofla::feature_loss) feature_loss;
};
namespace cpu {
extern const FeatureLossBackend kFeatureLoss;
}
namespace cuda {
extern const FeatureLossBackend kFeatureLoss;
}

}  // namespace dofla
