#include "dofla/ops/adam.h"

#include <cstring>
#include <vector>

#include "dofla/ops/cuda/adam_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

// A table, and the memory that it stands in.
template <class Row>
struct Uploaded {
  BlockTable<Row> table;
  Tensor memory;
};

// In one copy of a few kilobytes, anew for every step: learning rates change, and so may addresses.
template <class Row>
Uploaded<Row> upload(const std::vector<Row>& rows, const Device& gpu) {
  static_assert(sizeof(Row) % alignof(uint32_t) == 0);
  std::vector<uint32_t> firsts;
  uint32_t blocks = 0;
  for (const Row& row : rows) {
    firsts.push_back(blocks);
    blocks += static_cast<uint32_t>(squares_blocks(row.count));
  }
  const size_t row_bytes = rows.size() * sizeof(Row), first_bytes = rows.size() * sizeof(uint32_t);
  Tensor here({static_cast<int64_t>(row_bytes + first_bytes)}, DType::kI8);
  auto* bytes = static_cast<std::byte*>(here.mutable_raw());
  std::memcpy(bytes, rows.data(), row_bytes);
  std::memcpy(bytes + row_bytes, firsts.data(), first_bytes);
  const Tensor memory = here.to(gpu);
  const auto* there = static_cast<const std::byte*>(memory.raw());
  return {{.rows = reinterpret_cast<const Row*>(there),
           .firsts = reinterpret_cast<const uint32_t*>(there + row_bytes),
           .tensors = static_cast<int>(rows.size()),
           .blocks = blocks},
          memory};
}

const double* doubles(const Tensor& x) {
  return static_cast<const double*>(x.raw());
}

Tensor block_squares(std::span<const Tensor> gradients) {
  std::vector<GradientRow> rows;
  for (const Tensor& gradient : gradients)
    rows.push_back({floats(gradient), gradient.count(), begins_at_pack(gradient)});
  const auto [table, memory] = upload(rows, gradients.front().device());
  Tensor squares({int64_t{table.blocks}}, DType::kF64, memory.device());
  cuda_check(
      launch_block_squares(table, static_cast<double*>(squares.mutable_raw()), stream_of(squares)),
      "norm of gradients");
  return squares;
}

Tensor norm_of_blocks(const Tensor& squares, std::span<const Tensor>) {
  Tensor norm({1}, DType::kF64, squares.device());
  cuda_check(launch_norm(static_cast<uint32_t>(squares.count()), doubles(squares),
                         static_cast<double*>(norm.mutable_raw()), stream_of(norm)),
             "norm of gradients");
  return norm;
}

AdamRow row_of(AdamParameter& parameter) {
  auto& [value, gradient, moments, options, copy] = parameter;
  bool in_packs = true;
  for (const Tensor* x : {&value, &gradient, &moments.mean, &moments.square, &copy})
    in_packs = in_packs && begins_at_pack(*x);
  return {.gradient = floats(gradient),
          .value = mutable_floats(value),
          .mean = moments.mean.mutable_raw(),
          .square = moments.square.mutable_raw(),
          .copy = copy.defined() ? static_cast<uint16_t*>(copy.mutable_raw()) : nullptr,
          .count = value.count(),
          .factors = adam_factors(options, moments.steps),
          .chance = adam_chance(moments),
          .in_packs = in_packs};
}

void step(std::span<AdamParameter> parameters, const Tensor& norm, double max_norm) {
  std::vector<AdamRow> rows;
  for (AdamParameter& parameter : parameters) rows.push_back(row_of(parameter));
  const Tensor& first = parameters.front().value;
  const auto [table, memory] = upload(rows, first.device());
  cuda_check(launch_adam(table, element_of(parameters.front().moments.mean),
                         norm.defined() ? doubles(norm) : nullptr, max_norm, stream_of(first)),
             "adam");
}

}  // namespace

const AdamBackend kAdam = {
    .block_squares = block_squares, .norm_of_blocks = norm_of_blocks, .step = step};

}  // namespace dofla::cuda
