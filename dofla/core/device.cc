#include "dofla/core/device.h"

#include "dofla/core/error.h"

namespace dofla {

Device Device::from_name(std::string_view name, int turn) {
  if (name == "cpu") return {};
  if (name == "cuda") return cuda(turn);
  require(name == "auto", "expected device cpu, cuda or auto, found {}", name);
  try {
    return cuda(turn);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace dofla
