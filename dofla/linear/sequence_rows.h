// Sequences of several states of attention as one batch.
#pragma once

#include <functional>

#include "dofla/model/attention.h"

namespace dofla {

// A tensor whose row i is that of sequence i; `part` finds the tensor [B, …] in a state.
Tensor gather_sequences(std::span<const AttentionState::Sequence> sequences,
                        const std::function<Tensor(const AttentionState&)>& part);

}  // namespace dofla
