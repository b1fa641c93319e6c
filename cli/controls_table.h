// The controls of a student as evaluate and distill show them.
#pragma once

#include <string>

#include "dofla/evaluate/controls.h"

namespace dofla::cli {

struct JudgedStudent {
  double loss = 0;
  double teacher_loss = 0;
  int64_t state_bytes = 0;
};

// A heading, a row for the student and each control, and what there is to say of them; "" where
// there is nothing to say.
std::string controls_table(const Controls& controls, const JudgedStudent& student);

}  // namespace dofla::cli
