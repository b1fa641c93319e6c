// The gradients of biases and of a norm's weight and bias on the GPU: sums over all rows, against
// plain sums in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "dofla/ops/matmul.h"
#include "dofla/ops/norm.h"
#include "tests/support/gpu.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon();
constexpr double kHalfStep = 0x1p-8;  // of bf16, relative to the number, at most
constexpr double kEpsilon = 1e-5;     // of the norms

struct Size {
  int64_t rows, width;
};
// A single row, fewer rows than a warp has lanes, some that no block divides; widths in whole
// packs, and not.
constexpr Size kSizes[] = {{1, 8},      {1, 3072},  {63, 40},  {63, 41},
                           {1000, 768}, {1000, 20}, {77, 6000}};

// Sums over the rows, and how far off a float32 sum of the same terms may be.
struct ColumnSums {
  explicit ColumnSums(int64_t width)
      : sums(static_cast<size_t>(width)), errors(static_cast<size_t>(width)) {}

  // Warps, blocks and what adds these up share the work: no term passes through more than 128
  // additions, each of which rounds by half an eps.
  void add(int64_t column, double term, double error_of_term = 0) {
    const auto c = static_cast<size_t>(column);
    sums[c] += term;
    errors[c] += 64 * kEps * std::abs(term) + error_of_term;
  }
  // `found` began with ones.
  void expect(const Tensor& found, const std::string& what) const {
    const Tensor there = found.to(Device());
    for (size_t c = 0; c < sums.size(); ++c)
      ASSERT_NEAR(there.data<float>()[c], 1 + sums[c], errors[c] + kEps * (1 + std::abs(sums[c])))
          << what << ", column " << c;
  }

  std::vector<double> sums, errors;
};

class CudaColumnSums : public test::OnGpu {
 protected:
  // Numbers that the type represents, in float32 here and in the type on the GPU.
  struct Both {
    Tensor here, there;
  };
  Both normal(const Shape& shape, DType type) {
    const Tensor typed = test::normal_tensor(shape, random).to(type);
    return {typed.to(DType::kF32), typed.to(gpu)};
  }
  Tensor ones(const Shape& shape) const {
    Tensor out(shape);
    std::fill_n(out.data<float>(), out.count(), 1.0f);
    return out.to(gpu);
  }

  void check_bias(Size size, DType type) {
    const Both grad = normal({size.rows, size.width}, type), x = normal({size.rows, 8}, type);
    ColumnSums expected(size.width);
    for (int64_t r = 0; r < size.rows; ++r)
      for (int64_t c = 0; c < size.width; ++c)
        expected.add(c, grad.here.data<float>()[r * size.width + c]);
    const auto compute = [&] {
      Linear to = {ones({size.width, 8}), false, ones({size.width})};
      add_weight_gradient(x.there, grad.there, to);
      return to.bias;
    };
    const Tensor found = compute();
    expected.expect(found, what(size, type) + "bias gradient");
    EXPECT_TRUE(test::same_bits(here(compute()), here(found))) << what(size, type);
  }

  void check_norm(Size size, DType type, bool centre) {
    const auto [rows, width] = size;
    const Both x = normal({rows, width}, type), grad = normal({rows, width}, type);
    const Both past = normal({rows, width}, type), weight = normal({width}, DType::kF32);
    const auto backward = [&, width = width](bool there, Tensor& of_weight, Tensor& of_bias) {
      const auto of = [&](const Both& both) { return there ? both.there : both.here; };
      return centre
                 ? layer_norm_backward(of(x), of(weight), kEpsilon, of(grad), &of_weight, &of_bias,
                                       of(past))
                 : rms_norm_backward(of(x), of(weight), kEpsilon, of(grad), &of_weight, of(past));
    };
    Tensor of_weight = ones({width}), of_bias = ones({width});
    const Tensor grad_x = backward(true, of_weight, of_bias);
    Tensor unused_weight = Tensor::zeros({width}), unused_bias = unused_weight.clone();
    const Tensor expected_x = backward(false, unused_weight, unused_bias);
    const double rounding = type == DType::kBF16 ? kHalfStep : 0;
    const std::string name = what(size, type) + (centre ? "layer norm" : "RMS norm");
    expect_close(grad_x, expected_x, 32 * kEps * std::sqrt(static_cast<double>(width)) + rounding,
                 name);
    expect_sums(x.here, grad.here, centre, of_weight, of_bias, name);

    Tensor weight_again = ones({width}), bias_again = ones({width});
    EXPECT_TRUE(test::same_bits(here(backward(true, weight_again, bias_again)), here(grad_x)));
    EXPECT_TRUE(test::same_bits(here(weight_again), here(of_weight))) << name;
    EXPECT_TRUE(test::same_bits(here(bias_again), here(of_bias))) << name;
  }

  // In the normalised row mean and scale are sums over lanes, each of which adds a thirty-second
  // of the row, and round some sixteen times more.
  static void expect_sums(const Tensor& x, const Tensor& grad, bool centre, const Tensor& of_weight,
                          const Tensor& of_bias, const std::string& name) {
    const int64_t width = x.size(1);
    const double count = static_cast<double>(width), off = kEps * (count / 32 + 16);
    ColumnSums weight(width), bias(width);
    for (int64_t r = 0; r < x.size(0); ++r) {
      const float* row = x.data<float>() + r * width;
      const float* g = grad.data<float>() + r * width;
      double mean = 0, square = 0, magnitude = 0;
      for (int64_t c = 0; c < width && centre; ++c) mean += row[c] / count;
      for (int64_t c = 0; c < width; ++c) {
        square += (row[c] - mean) * (row[c] - mean) / count;
        magnitude += std::abs(row[c]) / count;
      }
      const double scale = 1 / std::sqrt(square + kEpsilon);
      for (int64_t c = 0; c < width; ++c) {
        const double unit = (row[c] - mean) * scale;
        weight.add(c, g[c] * unit, off * std::abs(g[c]) * (magnitude * scale + std::abs(unit)));
        bias.add(c, g[c]);
      }
    }
    weight.expect(of_weight, name + ", weight");
    if (centre) bias.expect(of_bias, name + ", bias");
  }

  static std::string what(Size size, DType type) {
    return fmt::format("{} rows of {} {}: ", size.rows, size.width, dofla::name(type));
  }

  Random random{11};
};

TEST_F(CudaColumnSums, Biases) {
  for (const Size size : kSizes) {
    check_bias(size, DType::kF32);
    if (size.width % 8 == 0) check_bias(size, DType::kBF16);  // as products of bf16 want it
  }
}

TEST_F(CudaColumnSums, BiasesLarge) {
  check_bias({16384, 768}, DType::kBF16);
  check_bias({16384, 3072}, DType::kBF16);
}

TEST_F(CudaColumnSums, Norms) {
  for (const Size size : kSizes)
    for (const DType type : {DType::kF32, DType::kBF16})
      for (const bool centre : {true, false}) check_norm(size, type, centre);
}

TEST_F(CudaColumnSums, NormsLarge) {
  check_norm({16384, 768}, DType::kBF16, true);
  check_norm({9999, 2048}, DType::kBF16, false);
  check_norm({4096, 768}, DType::kF32, true);
}

// What nobody wants is not computed, and what is wanted has the same bits.
TEST_F(CudaColumnSums, OfANormThatIsNotTrained) {
  const Tensor x = normal({70, 96}, DType::kBF16).there,
               grad = normal({70, 96}, DType::kBF16).there;
  const Tensor weight = ones({96});
  Tensor of_weight = ones({96}), of_bias = ones({96}), alone = ones({96});
  const Tensor all = layer_norm_backward(x, weight, kEpsilon, grad, &of_weight, &of_bias);
  const Tensor none = layer_norm_backward(x, weight, kEpsilon, grad, nullptr, nullptr);
  EXPECT_TRUE(test::same_bits(here(none), here(all)));
  layer_norm_backward(x, weight, kEpsilon, grad, nullptr, &alone);
  EXPECT_TRUE(test::same_bits(here(alone), here(of_bias)));
  alone = ones({96});
  layer_norm_backward(x, weight, kEpsilon, grad, &alone, nullptr);
  EXPECT_TRUE(test::same_bits(here(alone), here(of_weight)));
}

}  // namespace
}  // namespace dofla
