#include "dofla/linear/sequence_rows.h"

namespace dofla {

Tensor gather_sequences(std::span<const AttentionState::Sequence> sequences,
                        const std::function<Tensor(const AttentionState&)>& part) {
  const Tensor like = part(*sequences.front().state);
  Shape shape = like.shape();
  shape[0] = static_cast<int64_t>(sequences.size());
  Tensor out(shape, like.dtype(), like.device());
  // Rows that follow each other in one state are copied together.
  for (size_t begin = 0, end = 0; begin < sequences.size(); begin = end) {
    for (end = begin + 1; end < sequences.size(); ++end)
      if (sequences[end].state != sequences[begin].state ||
          sequences[end].index != sequences[end - 1].index + 1)
        break;
    Tensor to = out.slice(static_cast<int64_t>(begin), static_cast<int64_t>(end));
    to.assign(
        part(*sequences[begin].state).slice(sequences[begin].index, sequences[end - 1].index + 1));
  }
  return out;
}

}  // namespace dofla
