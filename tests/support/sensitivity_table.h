// A small sensitivity, by hand.
#pragma once

#include "dofla/sensitivity/sensitivity_table.h"

namespace dofla::test {

inline SensitivityTable small_sensitivity() {
  SensitivityTable table;
  table.model = {.model_type = "gpt2", .layers = 2, .heads = 2, .head_size = 8};
  table.ladder = {2, 8};
  table.steps = 3, table.batch = 2, table.windows = 5, table.length = 16;
  table.recipe = {{"features", "prf"}};
  table.text = "0123456789abcdef";
  table.seed = 11;
  table.teacher_loss = 3.25;
  table.layers = {{0.8, 0.2}, {0.1, 0.05}};
  table.heads = {{{0.7, 0.15}, {0.1, 0.05}}, {{0.05, 0.025}, {0.05, 0.025}}};
  return table;
}

// The same beside 8 exact keys of one key head, with what caches of 4 and 8 keys alone add.
inline SensitivityTable small_hybrid_sensitivity() {
  SensitivityTable table = small_sensitivity();
  table.exact = {.keys = 8, .sinks = 1, .recent = 1, .block = 2};
  table.key_heads = 1;
  table.key_ladder = {4, 8};
  table.keys = {{1.0, 0.4}, {0.2, 0.1}};
  table.key_shares = {{table.keys[0]}, {table.keys[1]}};
  return table;
}

// The same with the loss of repeated tokens that its key heads can save.
inline SensitivityTable small_recall_sensitivity() {
  SensitivityTable table = small_hybrid_sensitivity();
  table.recall = {.windows = 2, .lost = 4, .steps = {{1, 0, 4, 3.2}, {0, 0, 8, 0.8}}};
  return table;
}

}  // namespace dofla::test
