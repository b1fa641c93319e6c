// How large a model is, from the headers of its files alone.
#pragma once

#include <cstdint>

#include "dofla/checkpoint/checkpoint.h"

namespace dofla {

struct Parameters {
  int64_t count = 0;
  int64_t bytes = 0;
  DType dtype = DType::kF32;  // the type that holds most of the bytes
};

// Every float tensor of the checkpoint, except copies (an output head that is tied to the token
// embedding) and buffers that older files carry along (attention masks, rotary frequencies).
Parameters count_parameters(const Checkpoint& checkpoint);

}  // namespace dofla
