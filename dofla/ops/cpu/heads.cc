#include "dofla/ops/heads.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/vector_rows.h"

namespace dofla::cpu {
namespace {

// Where the vectors of [B, H, T, D] begin.
struct HeadSteps {
  explicit HeadSteps(const Tensor& x) : batch(x.step(0)), head(x.step(1)), token(x.step(2)) {}
  int64_t at(int64_t b, int64_t h, int64_t t) const { return b * batch + h * head + t * token; }

  int64_t batch, head, token;
};

int64_t of_sequence(const Tensor& numbers, int64_t b) {
  return numbers.defined() ? numbers.data<int64_t>()[b] : 0;
}

void copy_heads(const Tensor& from, const Tensor& past, Tensor& to) {
  require(from.dtype() == DType::kF32, "copy_heads: expected F32, found {}", name(from.dtype()));
  const int64_t heads = from.size(1), tokens = from.size(2), size = from.size(3);
  const HeadSteps source(from), target(to);
  const auto* here = static_cast<const float*>(from.first());
  auto* there = static_cast<float*>(to.mutable_first());
  parallel_rows(from.size(0) * tokens, [&](int64_t row) {
    const int64_t b = row / tokens, t = row % tokens, place = of_sequence(past, b) + t;
    for (int64_t h = 0; h < heads; ++h)
      std::copy_n(here + source.at(b, h, t), size, there + target.at(b, h, place));
  });
}

void rotate(Tensor& x, const Tensor& frequencies, const Tensor& first, bool back) {
  require(x.dtype() == DType::kF32, "rotate: expected F32, found {}", name(x.dtype()));
  const int64_t batch = x.size(0), heads = x.size(1), tokens = x.size(2);
  const int64_t half = frequencies.count();
  const float* frequency = frequencies.data<float>();
  const HeadSteps steps(x);
  auto* data = static_cast<float*>(x.mutable_first());
  parallel_rows(tokens, [&](int64_t t) {
    for (int64_t i = 0; i < half; ++i) {
      float cosine = 1, sine = 0;
      for (int64_t b = 0; b < batch; ++b) {
        // Sequences mostly stand at the same position.
        if (const int64_t at = of_sequence(first, b); b == 0 || at != of_sequence(first, b - 1)) {
          const float position = static_cast<float>(at + t);
          const float angle = position * (back ? -frequency[i] : frequency[i]);
          cosine = std::cos(angle), sine = std::sin(angle);
        }
        for (int64_t h = 0; h < heads; ++h) {
          float* v = data + steps.at(b, h, t) + i;
          const float one = v[0], other = v[half];
          v[0] = one * cosine - other * sine;
          v[half] = other * cosine + one * sine;
        }
      }
    }
  });
}

}  // namespace

const HeadsBackend kHeads = {copy_heads, rotate, nullptr};

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
