#include "dofla/core/device.h"

#include "dofla/core/error.h"

namespace dofla {

Device Device::from_name(std::string_view name) {
  if (name == "cpu") return {};
  if (name == "cuda") return cuda();
  require(name == "auto", "expected device cpu, cuda or auto, found {}", name);
  try {
    return cuda();
  } catch (const Error&) {
    return {};
  }
}

}  // namespace dofla
