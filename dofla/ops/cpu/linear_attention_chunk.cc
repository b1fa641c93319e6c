#include "dofla/ops/cpu/linear_attention_chunk.h"

#include <algorithm>

#include "dofla/ops/cpu/sgemm.h"
#include "dofla/ops/cpu/vector_rows.h"

namespace dofla::cpu {
namespace {

// e^-60: docs/kernels.md, "Chunks".
constexpr float kSmallestDenominator = 8.7565e-27f;

}  // namespace

ChunkFactors::ChunkFactors(int64_t rows, int64_t count) {
  const auto n = static_cast<size_t>(rows), m = static_cast<size_t>(count);
  peak.resize(m);
  decay.resize(m);
  faded.resize(m);
  query.resize(n * m);
  key.resize(n * m);
  shift.resize(n);
  weight.resize(n * n);
  denominator.resize(n);
}

bool factor_chunk(const HeadState& state, const float* log_q, const float* log_k, int64_t rows,
                  ChunkFactors& factors) {
  const int64_t count = state.count;
  float* peak = factors.peak.data();
  std::copy_n(state.log_max, count, peak);
  for (int64_t j = 0; j < rows; ++j) keep_larger(log_k + j * count, count, peak);
  float* query = factors.query.data();
  float* key = factors.key.data();
  for (int64_t i = 0; i < rows; ++i) {
    exp_of_difference(log_k + i * count, peak, count, key + i * count);
    const float shift = max_of_sum(log_q + i * count, peak, count);
    factors.shift[static_cast<size_t>(i)] = shift;
    exp_of_sum(log_q + i * count, peak, -shift, count, query + i * count);
  }
  sgemm({.transpose_b = true}, rows, rows, count, query, count, key, count, factors.weight.data(),
        rows);

  float* decay = factors.decay.data();
  exp_of_difference(state.log_max, peak, count, decay);
  float* faded = factors.faded.data();
  std::copy_n(decay, count, faded);
  multiply(state.a, count, faded);
  bool exact = true;
  for (int64_t i = 0; i < rows; ++i) {
    float* weight = factors.weight.data() + i * rows;
    std::fill(weight + i + 1, weight + rows, 0.0f);
    const float denominator = dot(query + i * count, faded, count) + row_sum(weight, i + 1);
    factors.denominator[static_cast<size_t>(i)] = denominator;
    exact = exact && !(denominator < kSmallestDenominator);
  }
  return exact;
}

void decay_state(const ChunkFactors& factors, HeadState& state) {
  std::copy_n(factors.faded.data(), state.count, state.a);
  for (int64_t m = 0; m < state.count; ++m) {
    const float decay = factors.decay[static_cast<size_t>(m)];
    if (decay != 1.0f) scale_row(decay, state.width, state.b + m * state.width);
  }
  std::copy_n(factors.peak.data(), state.count, state.log_max);
}

void chunk_output(const HeadState& state, const ChunkFactors& factors, const float* v, int64_t rows,
                  float* out, int64_t out_stride) {
  const int64_t count = state.count, width = state.width;
  sgemm({}, rows, width, count, factors.query.data(), count, state.b, width, out, out_stride);
  sgemm({.beta = 1}, rows, width, rows, factors.weight.data(), rows, v, width, out, out_stride);
  for (int64_t i = 0; i < rows; ++i)
    scale_row(1.0f / factors.denominator[static_cast<size_t>(i)], width, out + i * out_stride);
}

void absorb_chunk(const ChunkFactors& factors, const float* v, int64_t rows, HeadState& state) {
  const int64_t count = state.count, width = state.width;
  const float* key = factors.key.data();
  for (int64_t j = 0; j < rows; ++j) add_scaled(key + j * count, 1.0f, count, state.a);
  sgemm({.transpose_a = true, .beta = 1}, count, width, rows, key, count, v, width, state.b, width);
}

}  // namespace dofla::cpu
