// Attention to exact keys and features in one softmax by its definition, token by token in double
// precision.
#pragma once

#include "dofla/ops/exact_keys.h"
#include "tests/reference/attention_case.h"

namespace dofla::reference {

// Which keys every query may see exactly: [B, Hkv, T, T], 1 for those that are held.
using HeldKeys = std::vector<char>;

// A cache that loses keys as the definition says: one token after the other.
HeldKeys held_keys(const AttentionCase& problem, const ExactKeys& exact);

// The smallest distance, relative to the larger, between the score of a key that left and of one
// that stayed: below the rounding of float32 another choice is as good.
double closest_choice(const AttentionCase& problem, const ExactKeys& exact);

// [B, T, H, D]. Keys that are not held are estimated by features or, without `features`, forgotten.
std::vector<double> hybrid_attention(const AttentionCase& problem, const HeldKeys& held,
                                     bool features = true);

}  // namespace dofla::reference
