// The files of a student's folder, in the form that dofla and Transformers read
// (docs/transformers.md).
#pragma once

#include "dofla/checkpoint/checkpoint.h"

namespace dofla {

// model.safetensors, under the names that the teacher's family has for a whole language model.
void write_student_tensors(const fs::path& folder, const ModelConfig& config,
                           const NamedTensors& tensors);

// A teacher's config.json in a block of its own, beside what it says of a student's attention; that
// of a student as it is.
Json as_student_config(const Json& source);

// config.json, and the Python files that it names. `source` is the teacher's config.json or that of
// a student, `block` what is known of the student's attention.
void write_student_config(const fs::path& folder, const Json& source, const Json& block);

// Copies the tokenizer and what else of a model's folder does not depend on its attention.
void copy_companions(const fs::path& from, const fs::path& to);

}  // namespace dofla
