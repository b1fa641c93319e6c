#include "dofla/core/device.h"

#include "dofla/core/error.h"

namespace dofla {

Device Device::chosen(DeviceChoice choice, int turn) {
  if (choice == DeviceChoice::kCpu) return {};
  if (choice == DeviceChoice::kCuda) return cuda(turn);
  try {
    return cuda(turn);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace dofla
