#include "dofla/ops/cpu/heads.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/parallel.h"

namespace dofla::cpu {

void gather_heads(const Tensor& rows, HeadColumns columns, Tensor& out) {
  const int64_t heads = out.size(1), tokens = out.size(2), size = out.size(3);
  const int64_t width = rows.size(1);
  const float* from = rows.data<float>();
  float* to = out.data<float>();
  parallel_rows(rows.size(0), [&](int64_t row) {
    const int64_t b = row / tokens, t = row % tokens;
    for (int64_t h = 0; h < heads; ++h)
      std::copy_n(from + row * width + columns.offset + h * columns.stride, size,
                  to + ((b * heads + h) * tokens + t) * size);
  });
}

void rotate(Tensor& x, const std::vector<float>& frequencies, int64_t first_position) {
  const int64_t heads = x.size(0) * x.size(1), tokens = x.size(2), size = x.size(3);
  const int64_t half = static_cast<int64_t>(frequencies.size());
  float* data = x.data<float>();
  parallel_rows(tokens, [&](int64_t t) {
    const float position = static_cast<float>(first_position + t);
    for (int64_t i = 0; i < half; ++i) {
      const float angle = position * frequencies[static_cast<size_t>(i)];
      const float cosine = std::cos(angle), sine = std::sin(angle);
      for (int64_t h = 0; h < heads; ++h) {
        float* v = data + (h * tokens + t) * size + i;
        const float first = v[0], second = v[half];
        v[0] = first * cosine - second * sine;
        v[half] = second * cosine + first * sine;
      }
    }
  });
}

}  // namespace dofla::cpu
