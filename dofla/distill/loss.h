// What features are trained on: one of the layerwise losses over the pairs that a mask keeps, the
// error of a layer's attention output, or a loss of the whole student, on the next token or on the
// teacher's distribution of it.
#pragma once

#include <variant>

#include "dofla/core/names.h"
#include "dofla/ops/feature_loss.h"

namespace dofla {

struct DirectLoss {
  bool imitate = false;  // KL from the teacher's distribution of the next token, not the token
  // Keep only the input of every block and run the block again in the backward: about a third more
  // time, a fraction of the memory.
  bool recompute = false;
};

// Σ |out − softmax attention's|², the values included (docs/hybrid.md, "What features learn").
struct OutputLoss {};

// A loss over pairs has a mask, the others have not: none can say what has no meaning for it.
using LayerwiseLoss = std::variant<FeatureLossOptions, OutputLoss>;
using Loss = std::variant<FeatureLossOptions, OutputLoss, DirectLoss>;

enum class LossKind { kSoftmax, kL2, kAttentionMse, kOutput, kDirect, kKl };

// Whether a loss is of the whole student, and not layer by layer.
constexpr bool is_direct(LossKind kind) {
  return kind == LossKind::kDirect || kind == LossKind::kKl;
}

template <>
struct Names<LossKind> {
  static constexpr std::string_view kWhat = "loss";
  static constexpr std::array kAll = {Name{LossKind::kSoftmax, "softmax"},
                                      Name{LossKind::kL2, "l2"},
                                      Name{LossKind::kAttentionMse, "attention-mse"},
                                      Name{LossKind::kOutput, "output"},
                                      Name{LossKind::kDirect, "direct"},
                                      Name{LossKind::kKl, "kl"}};
};

template <>
struct Names<PairMask> {
  static constexpr std::string_view kWhat = "mask";
  static constexpr std::array kAll = {Name{PairMask::kCausal, "causal"},
                                      Name{PairMask::kFull, "full"}};
};

LossKind kind_of(const Loss& loss);
// Throws std::invalid_argument on a loss of the whole student.
LayerwiseLoss layerwise(const Loss& loss);

}  // namespace dofla
