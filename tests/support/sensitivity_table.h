// A small sensitivity, by hand.
#pragma once

#include "dofla/sensitivity/sensitivity_table.h"

namespace dofla::test {

inline SensitivityTable small_sensitivity() {
  SensitivityTable table;
  table.model = {.model_type = "gpt2", .layers = 2, .heads = 2, .head_size = 8};
  table.ladder = {2, 8};
  table.steps = 3, table.batch = 2, table.windows = 5, table.length = 16;
  table.text = "0123456789abcdef";
  table.seed = 11;
  table.teacher_loss = 3.25;
  table.layers = {{0.8, 0.2}, {0.1, 0.05}};
  table.heads = {{{0.7, 0.15}, {0.1, 0.05}}, {{0.05, 0.025}, {0.05, 0.025}}};
  return table;
}

}  // namespace dofla::test
