// The file in which an unfinished training run is kept: a safetensors file with all that the next
// step depends on, and in its metadata a description of the run, so that no other one goes on with
// it, and a checksum of everything, so that nothing goes on from a damaged file.
#pragma once

#include "dofla/checkpoint/safetensors.h"
#include "dofla/core/json.h"
#include "dofla/ops/adam.h"

namespace dofla {

void write_training_file(const fs::path& path, NamedTensors tensors, const Json& run);

// Throws Error if the file is damaged, or of another run than `run`, naming the setting that
// differs.
Safetensors open_training_file(const fs::path& path, const Json& run);

// What a training file says of its run, for a resume that does not repeat the options.
Json read_run(const fs::path& path);

// The tensor of this name. Throws Error naming the file unless it is there with this shape and
// type.
Tensor find_tensor(const Safetensors& file, const std::string& name, const Shape& shape,
                   DType dtype = DType::kF32);

Tensor integers(const std::vector<int64_t>& values);  // [N] in I64

void append_moments(const std::string& name, const AdamMoments& moments, NamedTensors& tensors);
void read_moments(const Safetensors& file, const std::string& name, AdamMoments& moments);
// As they lie in the file, of a parameter of this shape.
AdamMoments find_moments(const Safetensors& file, const std::string& name, const Shape& shape,
                         DType dtype = DType::kF32);

}  // namespace dofla
