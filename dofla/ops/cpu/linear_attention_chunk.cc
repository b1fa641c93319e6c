#include "dofla/ops/cpu/linear_attention_chunk.h"

#include <algorithm>
#include <cmath>

#include "dofla/ops/cpu/sgemm.h"
#include "dofla/ops/cpu/vector_rows.h"

namespace dofla::cpu {
namespace {

// e^-60: docs/kernels.md, "Chunks".
constexpr float kSmallestDenominator = 8.7565e-27f;

}  // namespace

KeyFactors::KeyFactors(int64_t rows, int64_t count) {
  const auto n = static_cast<size_t>(rows), m = static_cast<size_t>(count);
  peak.resize(m);
  decay.resize(m);
  faded.resize(m);
  key.resize(n * m);
}

QueryFactors::QueryFactors(int64_t rows, int64_t count) {
  const auto n = static_cast<size_t>(rows), m = static_cast<size_t>(count);
  query.resize(n * m);
  shift.resize(n);
  weight.resize(n * n);
  denominator.resize(n);
}

float QueryFactors::log_sum(int64_t row) const {
  return shift[static_cast<size_t>(row)] + std::log(denominator[static_cast<size_t>(row)]);
}

void factor_chunk_keys(const HeadState& state, const float* log_k, int64_t rows, KeyFactors& keys) {
  const int64_t count = state.count;
  float* peak = keys.peak.data();
  std::copy_n(state.log_max, count, peak);
  for (int64_t j = 0; j < rows; ++j) keep_larger(log_k + j * count, count, peak);
  for (int64_t j = 0; j < rows; ++j)
    exp_of_difference(log_k + j * count, peak, count, keys.key.data() + j * count);
  float* decay = keys.decay.data();
  exp_of_difference(state.log_max, peak, count, decay);
  float* faded = keys.faded.data();
  std::copy_n(decay, count, faded);
  multiply(state.a, count, faded);
}

bool factor_chunk_queries(const KeyFactors& keys, const float* log_q, int64_t rows, int64_t block,
                          QueryFactors& queries) {
  const auto count = static_cast<int64_t>(keys.peak.size());
  const float* peak = keys.peak.data();
  float* query = queries.query.data();
  for (int64_t i = 0; i < rows; ++i) {
    const float shift = max_of_sum(log_q + i * count, peak, count);
    queries.shift[static_cast<size_t>(i)] = shift;
    exp_of_sum(log_q + i * count, peak, -shift, count, query + i * count);
  }
  sgemm({.transpose_b = true}, rows, rows, count, query, count, keys.key.data(), count,
        queries.weight.data(), rows);
  bool exact = true;
  for (int64_t i = 0; i < rows; ++i) {
    float* weight = queries.weight.data() + i * rows;
    const int64_t seen = (i / block + 1) * block;
    std::fill(weight + seen, weight + rows, 0.0f);
    const float denominator =
        dot(query + i * count, keys.faded.data(), count) + row_sum(weight, seen);
    queries.denominator[static_cast<size_t>(i)] = denominator;
    exact = exact && !(denominator < kSmallestDenominator);
  }
  return exact;
}

void decay_state(const KeyFactors& keys, HeadState& state) {
  std::copy_n(keys.faded.data(), state.count, state.a);
  for (int64_t m = 0; m < state.count; ++m) {
    const float decay = keys.decay[static_cast<size_t>(m)];
    if (decay != 1.0f) scale_row(decay, state.width, state.b + m * state.width);
  }
  std::copy_n(keys.peak.data(), state.count, state.log_max);
}

void chunk_output(const HeadState& state, const QueryFactors& queries, const float* v, int64_t rows,
                  float* out, int64_t out_stride) {
  const int64_t count = state.count, width = state.width;
  sgemm({}, rows, width, count, queries.query.data(), count, state.b, width, out, out_stride);
  sgemm({.beta = 1}, rows, width, rows, queries.weight.data(), rows, v, width, out, out_stride);
  for (int64_t i = 0; i < rows; ++i)
    scale_row(1.0f / queries.denominator[static_cast<size_t>(i)], width, out + i * out_stride);
}

void absorb_chunk(const KeyFactors& keys, const float* v, int64_t rows, HeadState& state) {
  const int64_t count = state.count, width = state.width;
  const float* key = keys.key.data();
  for (int64_t j = 0; j < rows; ++j) add_scaled(key + j * count, 1.0f, count, state.a);
  sgemm({.transpose_a = true, .beta = 1}, count, width, rows, key, count, v, width, state.b, width);
}

}  // namespace dofla::cpu
