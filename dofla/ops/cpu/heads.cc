#include "dofla/ops/cpu/heads.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/vector_rows.h"

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

void scatter_heads(const Tensor& heads, HeadColumns columns, Tensor& rows) {
  const int64_t count = heads.size(1), tokens = heads.size(2), size = heads.size(3);
  const int64_t width = rows.size(1);
  const float* from = heads.data<float>();
  float* to = rows.data<float>();
  parallel_rows(rows.size(0), [&](int64_t row) {
    const int64_t b = row / tokens, t = row % tokens;
    for (int64_t h = 0; h < count; ++h)
      std::copy_n(from + ((b * count + h) * tokens + t) * size, size,
                  to + row * width + columns.offset + h * columns.stride);
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

Tensor sum_over_groups(const Tensor& parts, int64_t key_heads) {
  if (parts.size(1) == key_heads) return parts;
  Tensor out = Tensor::zeros({parts.size(0), key_heads, parts.size(2), parts.size(3)});
  const int64_t size = parts.size(2) * parts.size(3), group = parts.size(1) / key_heads;
  const float* from = parts.data<float>();
  float* to = out.data<float>();
  parallel_rows(parts.size(0) * key_heads, [&](int64_t head) {
    for (int64_t i = 0; i < group; ++i)
      add_scaled(from + (head * group + i) * size, 1.0f, size, to + head * size);
  });
  return out;
}

}  // namespace dofla::cpu
