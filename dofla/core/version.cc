#include "dofla/core/version.h"

namespace dofla {

std::string_view version() {
  return DOFLA_VERSION;
}

}  // namespace dofla
