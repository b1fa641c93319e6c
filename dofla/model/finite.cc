#include "dofla/model/finite.h"

#include <bit>
#include <string>

namespace dofla {
namespace {

std::string first_place(const Transformer& model, const Tensor& ids) {
  Tape tape;
  tape.recompute = true;  // keeps no more than what every block receives
  ForwardOptions options;
  options.tape = &tape;
  model.forward(ids, options);
  const int64_t layers = model.config().layers;
  for (int64_t i = 0; i < layers; ++i) {
    if (all_finite(tape.blocks[static_cast<size_t>(i)].x)) continue;
    return i == 0 ? "the token embedding" : fmt::format("layer {} of {}", i, layers);
  }
  return all_finite(tape.last) ? "the final norm or the head"
                               : fmt::format("layer {} of {}", layers, layers);
}

std::string broken_weight(const Transformer& model) {
  for (const auto& [name, tensor] : model.parameters())
    if (!all_finite(tensor)) return fmt::format("{} holds NaN or infinity", name);
  return "its values leave the range of float";
}

}  // namespace

bool all_finite(const Tensor& values) {
  const Tensor here = values.to(Device()).to(DType::kF32);
  constexpr uint32_t kExponent = 0x7f800000;
  const float* data = here.data<float>();
  bool found = false;  // without a branch, so that it runs on vectors
  for (int64_t i = 0; i < here.count(); ++i)
    found |= (std::bit_cast<uint32_t>(data[i]) & kExponent) == kExponent;
  return !found;
}

void fail_not_finite(const Transformer& model, const Tensor& ids, std::string_view what) {
  throw NotFinite(
      fmt::format("{} is not finite; the first place where the model's values are not is "
                  "{}: {}",
                  what, first_place(model, ids), broken_weight(model)));
}

}  // namespace dofla
