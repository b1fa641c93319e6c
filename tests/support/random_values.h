// Random inputs that float32 represents exactly, so that a double reference sees the same numbers.
#pragma once

#include <cstring>
#include <vector>

#include <omp.h>

#include "dofla/core/random.h"
#include "dofla/core/tensor.h"

namespace dofla::test {

inline std::vector<double> normal_values(int64_t count, Random& random) {
  std::vector<double> out(static_cast<size_t>(count));
  for (double& x : out) x = static_cast<float>(random.normal());
  return out;
}

inline Tensor normal_tensor(const Shape& shape, Random& random) {
  Tensor out(shape);
  for (int64_t i = 0; i < out.count(); ++i)
    out.data<float>()[i] = static_cast<float>(random.normal());
  return out;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0;
}

// What f returns when the loops have this many threads.
template <class F>
auto with_threads(int count, const F& f) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(count);
  auto result = f();
  omp_set_num_threads(before);
  return result;
}

}  // namespace dofla::test
