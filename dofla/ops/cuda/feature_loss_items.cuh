// Where an item lies: its head, sequence, window of features and tiles of queries.
#pragma once

#include "dofla/ops/cuda/feature_loss_plan.h"

namespace dofla::cuda::feature_pairs {

// Work item `number` of the task.
__device__ __forceinline__ Item item_of(const PairTask& task, int number) {
  const Plan& plan = task.plan;
  number += task.first_item;
  Item found;
  for (found.h = 0;; ++found.h) {
    found.head = task.work.heads[found.h];
    const int items = found.head.windows() * plan.batch * plan.pairs;
    if (number >= found.head.first_item && number < found.head.first_item + items) break;
  }
  const int local = number - found.head.first_item;
  found.row_tile = local % plan.pairs;
  found.b = local / plan.pairs % plan.batch;
  found.window_first = local / plan.pairs / plan.batch * found.head.window;
  found.feature_row =
      (int64_t{found.b} * plan.padded_total + found.head.padded_first) * plan.tokens;
  found.blocks16 = min(found.head.window, found.head.padded - found.window_first) / 16;
  return found;
}

}  // namespace dofla::cuda::feature_pairs
