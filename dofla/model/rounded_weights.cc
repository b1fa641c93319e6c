#include "dofla/model/rounded_weights.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "dofla/core/error.h"
#include "dofla/core/parallel.h"
#include "dofla/model/weights.h"

namespace dofla {

Tensor round_rows(const Tensor& matrix, bool input_major, int bits) {
  require(bits >= 2 && bits <= 8, "weights rounded to {} bits: expected 2 to 8", bits);
  require(matrix.rank() == 2, "round_rows: expected a matrix, found {}", to_string(matrix.shape()));
  const double steps = (1 << (bits - 1)) - 1;
  const Tensor exact = matrix.to(DType::kF32);
  const int64_t columns = matrix.size(1);
  const int64_t rows = matrix.size(input_major ? 1 : 0), count = matrix.size(input_major ? 0 : 1);
  const int64_t from_row_to_row = input_major ? 1 : columns;
  const int64_t from_value_to_value = input_major ? columns : 1;
  Tensor whole(matrix.shape(), DType::kI8);
  Tensor factors(input_major ? Shape{1, rows} : Shape{rows, 1});
  int8_t* const to = whole.data<int8_t>();
  float* const factor = factors.data<float>();
  parallel_for(rows, [&](int64_t row) {
    const float* values = exact.data<float>() + row * from_row_to_row;
    double largest = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double magnitude = std::abs(values[i * from_value_to_value]);
      if (!std::isfinite(magnitude)) fail("a weight is not finite: it cannot be rounded");
      largest = std::max(largest, magnitude);
    }
    factor[row] = static_cast<float>(largest / steps);
    for (int64_t i = 0; i < count; ++i) {
      const double value = values[i * from_value_to_value];
      to[row * from_row_to_row + i * from_value_to_value] =
          static_cast<int8_t>(largest == 0 ? 0 : std::round(value / largest * steps));
    }
  });
  return Tensor::scaled(whole, factors);
}

void require_unrounded(const Checkpoint& model, std::string_view purpose) {
  for (const std::string& name : model.names())
    if (model.tensor(name).is_scaled())
      fail("{}: its weights are rounded to 8 bits; {} the model that they were rounded from",
           model.folder().string(), purpose);
}

Checkpoint with_rounded_weights(const Checkpoint& model, int bits) {
  const Weights weights = load_weights(model);
  std::unordered_map<const void*, bool> matrices;  // whether they are input-major, by their memory
  const auto see = [&](const Linear& linear) {
    if (linear.weight.defined()) matrices.emplace(linear.weight.raw(), linear.input_major);
  };
  matrices.emplace(weights.token_embedding.raw(), false);
  see(weights.head);
  for (const LayerWeights& layer : weights.layers) {
    for (const Linear& projection : layer.projections) see(projection);
    for (const Linear* linear :
         {&layer.attention_output, &layer.mlp_gate, &layer.mlp_up, &layer.mlp_down})
      see(*linear);
  }
  NamedTensors rounded;
  for (const auto& [name, tensor] : weights.parameters)
    if (const auto found = matrices.find(tensor.raw()); found != matrices.end())
      rounded.emplace_back(name, round_rows(tensor, found->second, bits));
  return model.with(rounded);
}

}  // namespace dofla
