// Which tensors of a checkpoint are a model's parameters, and how many there are, from the headers
// of its files alone.
#pragma once

#include <cstdint>
#include <string_view>

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

// Whether a tensor of this name is such a copy or buffer: the model is the same without it.
bool is_superfluous(const ModelConfig& config, std::string_view name);

// Throws Error, naming the first of them, if the checkpoint holds tensors that are neither among
// `used` nor such copies and buffers: they are then the weights of another model than the one that
// config.json describes, which would run all the same.
void require_all_used(const Checkpoint& checkpoint, const NamedTensors& used);

}  // namespace dofla
