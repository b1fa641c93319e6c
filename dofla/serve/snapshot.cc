#include "dofla/serve/snapshot.h"

namespace dofla {

int64_t Snapshot::bytes() const {
  return state.bytes() + (hidden.defined() ? hidden.bytes() : 0) +
         std::ssize(tokens) * static_cast<int64_t>(sizeof(int64_t));
}

DecodeState copy_of(const Transformer& model, const DecodeState& state, int64_t index,
                    int64_t tokens) {
  DecodeState one = state.share(index, index + 1);
  one.set_positions({tokens});
  DecodeState copy = model.new_state();
  model.reserve(copy, 1, tokens);
  copy.put(0, one, 0);
  return copy;
}

bool all_layers_grow(const Transformer& model) {
  for (int64_t i = 0; i < model.config().layers; ++i)
    if (!model.attention(i).grows()) return false;
  return true;
}

}  // namespace dofla
