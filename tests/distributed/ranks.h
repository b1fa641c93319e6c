// For tests on several ranks: who they are, and numbers by which they differ.
#pragma once

#include <vector>

#include "dofla/distributed/group.h"

namespace dofla {

extern Group group;  // all processes that mpirun started

// Numbers whose sum depends on its order, different on every rank.
template <class T>
std::vector<T> numbers(int64_t count, int rank) {
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<T>((i % 7 + 1) * (rank % 2 == 0 ? 1e7 : 1) / (3.0 + rank)));
  return values;
}

template <class T>
std::vector<T> sum_in_order(int64_t count) {
  std::vector<T> sum = numbers<T>(count, 0);
  for (int rank = 1; rank < group.size(); ++rank) {
    const std::vector<T> more = numbers<T>(count, rank);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  }
  return sum;
}

}  // namespace dofla
