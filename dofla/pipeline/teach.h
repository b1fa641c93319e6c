// A teacher's distributions on a text, written to a file that students learn from.
#pragma once

#include "dofla/pipeline/text.h"
#include "dofla/train/teacher_file.h"

namespace dofla {

struct Taught {
  TeacherFileHeader header;
  double named = 0;   // the mass of the tokens that are named, mean over all rows
  int64_t bytes = 0;  // of the file
};

// Of every token of every window the `top` likeliest next ones. The file appears whole or not at
// all. Throws Error where the teacher's logits are not finite.
Taught teach(const fs::path& file, const Checkpoint& teacher, const WindowSet& windows, int64_t top,
             const Device& device = {}, const Progress& progress = {});

}  // namespace dofla
