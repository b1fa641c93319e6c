// Coordinates folded into the weights that make queries and keys: nothing is paid when the model
// runs.
#include <algorithm>
#include <cmath>

#include <cblas.h>
#include <lapacke.h>

#include "dofla/core/error.h"
#include "dofla/core/parallel.h"
#include "dofla/features/coordinates.h"
#include "dofla/model/weights.h"

namespace dofla {
namespace {

using Matrix = std::vector<double>;  // row-major

Matrix to_doubles(const float* from, int64_t count) {
  return {from, from + count};
}

// (A⁻¹)ᵀ; nothing if A has no inverse.
Matrix inverse_transpose(const Matrix& map, int n) {
  Matrix work(map.size());
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < n; ++j)
      work[static_cast<size_t>(i * n + j)] = map[static_cast<size_t>(j * n + i)];
  std::vector<lapack_int> pivots(static_cast<size_t>(n));
  if (!std::ranges::all_of(work, [](double x) { return std::isfinite(x); })) return {};
  if (LAPACKE_dgetrf(LAPACK_ROW_MAJOR, n, n, work.data(), n, pivots.data()) != 0) return {};
  if (LAPACKE_dgetri(LAPACK_ROW_MAJOR, n, work.data(), n, pivots.data()) != 0) return {};
  return work;
}

// Writable float32 copies of the weights of a model, made as they are asked for.
class Copies {
 public:
  explicit Copies(const Weights& weights) : weights_(weights) {}

  Tensor of(const Tensor& weight) {
    const auto found = std::ranges::find_if(
        weights_.parameters, [&](const auto& named) { return named.second.raw() == weight.raw(); });
    require(found != weights_.parameters.end(), "in_coordinates: a weight without a name");
    const auto copied = std::ranges::find(copies_, found->first, [](auto& c) { return c.first; });
    if (copied != copies_.end()) return copied->second;
    const bool same = weight.dtype() == DType::kF32;
    return copies_.emplace_back(found->first, same ? weight.clone() : weight.to(DType::kF32))
        .second;
  }

  NamedTensors take() { return std::move(copies_); }

 private:
  const Weights& weights_;
  NamedTensors copies_;
};

// The outputs of a projection that make one head: y = W x + b becomes M (W x + b − c).
void map_outputs(const Matrix& map, const float* shift, int64_t first, int64_t size,
                 bool input_major, Tensor& weight, Tensor& bias) {
  const int64_t outputs = weight.size(input_major ? 1 : 0);
  const int64_t inputs = weight.size(input_major ? 0 : 1), columns = inputs + 1;
  float* w = weight.data<float>();
  const auto element = [&](int64_t output, int64_t input) -> float& {
    return input_major ? w[input * outputs + first + output] : w[(first + output) * inputs + input];
  };
  float* b = bias.defined() ? bias.data<float>() + first : nullptr;
  Matrix rows(static_cast<size_t>(size * columns)), mapped(rows.size());
  for (int64_t o = 0; o < size; ++o) {
    for (int64_t i = 0; i < inputs; ++i) rows[static_cast<size_t>(o * columns + i)] = element(o, i);
    const double constant = b == nullptr ? 0.0 : double{b[o]} - (shift == nullptr ? 0 : shift[o]);
    rows[static_cast<size_t>(o * columns + inputs)] = constant;
  }
  const auto n = static_cast<int>(size), k = static_cast<int>(columns);
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, k, n, 1.0, map.data(), n, rows.data(),
              k, 0.0, mapped.data(), k);
  for (int64_t o = 0; o < size; ++o) {
    for (int64_t i = 0; i < inputs; ++i)
      element(o, i) = static_cast<float>(mapped[static_cast<size_t>(o * columns + i)]);
    if (b != nullptr) b[o] = static_cast<float>(mapped[static_cast<size_t>(o * columns + inputs)]);
  }
}

// The heads [0, heads) of queries or keys, several of them to a map.
void map_heads(const LayerWeights& layer, const HeadColumns& columns, int64_t heads,
               const std::vector<Matrix>& maps, const Tensor* shift, int64_t size, Copies& copies) {
  const Linear& linear = layer.projections[columns.projection];
  Tensor weight = copies.of(linear.weight);
  Tensor bias = linear.bias.defined() ? copies.of(linear.bias) : Tensor();
  const int64_t group = heads / static_cast<int64_t>(maps.size());
  parallel_for(heads, [&](int64_t h) {
    const SingleThreaded one_thread;
    const int64_t at = h / group;
    map_outputs(maps[static_cast<size_t>(at)],
                shift == nullptr ? nullptr : shift->data<float>() + at * size,
                columns.offset + h * columns.stride, size, linear.input_major, weight, bias);
  });
}

// A norm's weight is the same for all heads and scales coordinates one by one.
void scale_norm(const Matrix& map, int64_t size, Tensor weight) {
  float* w = weight.data<float>();
  for (int64_t i = 0; i < size; ++i)
    w[i] = static_cast<float>(w[i] * map[static_cast<size_t>(i * size + i)]);
}

void fold_layer(const ModelConfig& config, const LayerWeights& layer, const LayerCoordinates& to,
                int64_t number, Copies& copies) {
  const int64_t size = config.head_size;
  std::vector<Matrix> maps, inverses;
  for (int64_t h = 0; h < config.kv_heads; ++h) {
    maps.push_back(to_doubles(to.map.data<float>() + h * size * size, size * size));
    inverses.push_back(inverse_transpose(maps.back(), static_cast<int>(size)));
    if (inverses.back().empty())
      fail("layer {}, key head {}: the map of its coordinates has no inverse", number + 1, h + 1);
  }
  if (config.qk_norm) {
    scale_norm(maps[0], size, copies.of(layer.q_norm));
    scale_norm(inverses[0], size, copies.of(layer.k_norm));
    return;
  }
  const float* shift = to.shift.data<float>();
  if (!config.qkv_bias &&
      std::any_of(shift, shift + to.shift.count(), [](float c) { return c != 0; }))
    fail("layer {}: its coordinates shift keys, but its projections have no bias", number + 1);
  map_heads(layer, layer.q, config.heads, maps, nullptr, size, copies);
  map_heads(layer, layer.k, config.kv_heads, inverses, &to.shift, size, copies);
}

}  // namespace

Checkpoint in_coordinates(const Checkpoint& model, const CoordinateSet& coordinates) {
  if (coordinates.layers.empty()) return model;
  const Weights weights = load_weights(model);
  require(coordinates.layers.size() == weights.layers.size(),
          "coordinates of {} layers, the model has {}", coordinates.layers.size(),
          weights.layers.size());
  Copies copies(weights);
  for (size_t i = 0; i < weights.layers.size(); ++i)
    fold_layer(model.config(), weights.layers[i], coordinates.layers[i], static_cast<int64_t>(i),
               copies);
  return model.with(copies.take());
}

}  // namespace dofla
