#include "dofla/ops/token_program.h"

namespace dofla {

std::unique_ptr<TokenProgram> token_program(const Device& device) {
  return device.is_cuda() ? cuda::kTokenProgram.make(device) : nullptr;
}

}  // namespace dofla
