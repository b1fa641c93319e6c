// What the tests of decoding share: dense layers with what stands around them, and plain double
// loops that say what comes out.
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "dofla/ops/token_program.h"
#include "tests/support/gpu.h"
#include "tests/support/random_values.h"

namespace dofla::test {

inline constexpr double kEps = std::numeric_limits<float>::epsilon();
inline constexpr double kHalfStep = 0x1p-8;  // of bf16, relative to the number, at most

// What stands around the product.
struct Around {
  enum { kNone, kLayer, kRms } norm = kNone;
  bool bias = false;
  std::optional<Activation> activation = {};
  bool factor = false;
  bool residual = false;
};

inline double activated(Activation f, double x) {
  switch (f) {
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kRelu:
      return std::max(x, 0.0);
  }
  return x;
}

inline const Around kArounds[] = {
    {},
    {.norm = Around::kLayer, .bias = true},
    {.bias = true, .residual = true},
    {.norm = Around::kLayer, .bias = true, .activation = Activation::kGeluTanh},
    {.norm = Around::kRms, .activation = Activation::kSilu},
    {.norm = Around::kRms, .factor = true},
    {.bias = true, .activation = Activation::kGelu, .residual = true},
    {.activation = Activation::kRelu, .residual = true}};

class DenseOnGpu : public OnGpu {
 protected:
  // Numbers that bf16 represents.
  Tensor narrow(const Shape& shape) { return normal_tensor(shape, random).to(DType::kBF16); }

  Features tied_features(std::vector<int64_t> counts, int64_t size) {
    Features features = {.counts = std::move(counts), .z = {}, .log_alpha = {}};
    features.z = normal_tensor({features.total(), size}, random);
    features.log_alpha = normal_tensor({features.total()}, random);
    return features;
  }
  Features untied_features(std::vector<int64_t> counts, int64_t query_heads, int64_t size) {
    Features features = untie(tied_features(std::move(counts), size), query_heads);
    features.u = normal_tensor(features.u.shape(), random);
    features.norm_weight = normal_tensor(features.norm_weight.shape(), random);
    return features;
  }

  Dense layer_of(int64_t rows, int64_t inputs, int64_t outputs, bool input_major,
                 const Around& around) {
    Dense layer;
    layer.linear = {narrow(input_major ? Shape{inputs, outputs} : Shape{outputs, inputs}),
                    input_major, around.bias ? narrow({outputs}) : Tensor()};
    if (around.norm != Around::kNone) layer.norm.weight = normal_tensor({inputs}, random);
    if (around.norm == Around::kLayer) layer.norm.bias = normal_tensor({inputs}, random);
    layer.norm.epsilon = 1e-5;
    layer.norm.centre = around.norm == Around::kLayer;
    layer.activation = around.activation;
    if (around.factor) layer.factor = narrow({rows, outputs});
    if (around.residual) layer.residual = narrow({rows, outputs});
    return layer;
  }

  Dense there(const Dense& layer) const {
    Dense out = layer;
    for (Tensor* tensor : {&out.linear.weight, &out.linear.bias, &out.norm.weight, &out.norm.bias,
                           &out.factor, &out.residual})
      *tensor = tensor->to(gpu);
    return out;
  }

  static double at(const Tensor& x, int64_t i) {
    return x.dtype() == DType::kF32 ? x.data<float>()[i] : to_float(x.data<BFloat16>()[i]);
  }

  static std::vector<double> normalised(const Dense::Norm& norm, const Tensor& x, int64_t row) {
    const int64_t width = x.size(1);
    std::vector<double> out(static_cast<size_t>(width));
    for (int64_t k = 0; k < width; ++k) out[static_cast<size_t>(k)] = at(x, row * width + k);
    if (!norm.weight.defined()) return out;
    double mean = 0, square = 0;
    for (const double value : out) mean += value / static_cast<double>(width);
    if (!norm.centre) mean = 0;
    for (const double value : out) square += (value - mean) * (value - mean);
    const double scale = 1 / std::sqrt(square / static_cast<double>(width) + norm.epsilon);
    for (int64_t k = 0; k < width; ++k) {
      double& value = out[static_cast<size_t>(k)];
      value = (value - mean) * scale * at(norm.weight, k);
      if (norm.bias.defined()) value += at(norm.bias, k);
    }
    return out;
  }

  // A lane adds up a thirty-second of the terms one after another, and every partial sum is at most
  // the sum of magnitudes; norm, tree of lanes and ending round some thirty times more. The fast
  // exponential of the activations is good to 2 + 1.2 |x| units in the last place. `of_terms` and
  // `of_result` are what they may be off by besides.
  void expect_dense(const Tensor& x, const Dense& layer, const Tensor& found,
                    const std::string& what, double of_terms = 0, double of_result = 0) const {
    const int64_t inputs = x.size(1), outputs = layer.linear.outputs();
    const bool wide = found.dtype() == DType::kF32;
    const Tensor y = found.to(Device());
    ASSERT_EQ(y.shape(), (Shape{x.size(0), outputs})) << what;
    for (int64_t r = 0; r < x.size(0); ++r) {
      const std::vector<double> row = normalised(layer.norm, x, r);
      for (int64_t n = 0; n < outputs; ++n) {
        double sum = layer.linear.bias.defined() ? at(layer.linear.bias, n) : 0;
        double magnitude = std::abs(sum);
        for (int64_t k = 0; k < inputs; ++k) {
          const int64_t weight = layer.linear.input_major ? k * outputs + n : n * inputs + k;
          const double term = at(layer.linear.weight, weight) * row[static_cast<size_t>(k)];
          sum += term;
          magnitude += std::abs(term);
        }
        double error = (kEps * (static_cast<double>(inputs) / 32 + 32) + of_terms) * magnitude;
        if (layer.activation) {
          error = 1.2 * error + kEps * (8 + 2 * std::abs(sum)) * std::abs(sum);
          sum = activated(*layer.activation, sum);
        }
        const int64_t i = r * outputs + n;
        if (layer.factor.defined()) {
          sum *= at(layer.factor, i);
          error *= std::abs(at(layer.factor, i));
        }
        if (layer.residual.defined()) sum += at(layer.residual, i), error += 8 * kEps;
        error += ((wide ? kEps : kHalfStep) + of_result) * (std::abs(sum) + error);
        ASSERT_NEAR(at(y, i), sum, error) << what << " row " << r << " output " << n;
      }
    }
  }

  Random random{17};
};

}  // namespace dofla::test
