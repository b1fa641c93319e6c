// Tells weights and models apart.
#pragma once

#include <string>

#include "dofla/checkpoint/checkpoint.h"

namespace dofla {

std::string fingerprint_of(const NamedTensors& tensors);  // of their elements, on any device

// Tells models apart: of the configuration and all tensors, whatever device computes with them.
std::string fingerprint_of(const Checkpoint& checkpoint);

}  // namespace dofla
