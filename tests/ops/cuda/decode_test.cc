// The steps of decoding on a GPU: dense layers of a few rows against plain double loops, the rest
// against what the CPU puts together.
#include "dofla/ops/decode.h"

#include <limits>

#include "tests/support/gpu.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

using test::normal_tensor;

constexpr double kEps = std::numeric_limits<float>::epsilon();
constexpr double kHalfStep = 0x1p-8;  // of bf16, relative to the number, at most

// What stands around the product.
struct Around {
  enum { kNone, kLayer, kRms } norm = kNone;
  bool bias = false;
  std::optional<Activation> activation = {};
  bool factor = false;
  bool residual = false;
};

double activated(Activation f, double x) {
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

class CudaDecode : public test::OnGpu {
 protected:
  // Numbers that bf16 represents.
  Tensor narrow(const Shape& shape) { return normal_tensor(shape, random).to(DType::kBF16); }

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
  // exponential of the activations is good to 2 + 1.2 |x| units in the last place.
  void expect_dense(const Tensor& x, const Dense& layer, const Tensor& found,
                    const std::string& what) const {
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
        double error = kEps * (static_cast<double>(inputs) / 32 + 32) * magnitude;
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
        error += (wide ? kEps : kHalfStep) * (std::abs(sum) + error);
        ASSERT_NEAR(at(y, i), sum, error) << what << " row " << r << " output " << n;
      }
    }
  }

  Random random{17};
};

TEST_F(CudaDecode, DenseLayersOfAFewRows) {
  const Around arounds[] = {
      {},
      {.norm = Around::kLayer, .bias = true},
      {.bias = true, .residual = true},
      {.norm = Around::kLayer, .bias = true, .activation = Activation::kGeluTanh},
      {.norm = Around::kRms, .activation = Activation::kSilu},
      {.norm = Around::kRms, .factor = true},
      {.bias = true, .activation = Activation::kGelu, .residual = true},
      {.activation = Activation::kRelu, .residual = true}};
  const std::pair<int64_t, int64_t> sizes[] = {{64, 48},   {8, 1},     {40, 19},
                                               {256, 130}, {304, 7},   {520, 16},
                                               {1000, 33}, {2056, 24}, {3080, 24}};
  for (const auto& [inputs, outputs] : sizes)
    for (const int64_t rows : {1, 2, 3, 8})
      for (const Around& around : arounds) {
        if (rows == 8 && inputs == 3080) continue;  // no room for them and a norm
        const Tensor x = narrow({rows, inputs});
        const Dense layer = layer_of(rows, inputs, outputs, false, around);
        for (const DType type : {DType::kBF16, DType::kF32})
          expect_dense(x, layer, dense(x.to(gpu), there(layer), type),
                       fmt::format("{} rows, {} to {}, {}", rows, inputs, outputs, name(type)));
      }
}

// More outputs than blocks take at a time: each goes on with the next ones.
TEST_F(CudaDecode, DenseLayersOfManyOutputs) {
  const std::pair<int64_t, int64_t> sizes[] = {{72, 20008}, {2056, 3000}};
  for (const auto& [inputs, outputs] : sizes)
    for (const int64_t rows : {1, 5}) {
      const Tensor x = narrow({rows, inputs});
      const Dense layer = layer_of(rows, inputs, outputs, false, {.bias = true, .residual = true});
      const Tensor y = dense(x.to(gpu), there(layer), DType::kF32);
      expect_dense(x, layer, y, fmt::format("{} rows, {} to {}", rows, inputs, outputs));
      EXPECT_TRUE(test::same_bits(here(dense(x.to(gpu), there(layer), DType::kF32)), here(y)));
    }
}

// Others are done by the operations for whole sequences, which round to bf16 in between: more rows,
// inputs that are not in packs, weights [K, N].
TEST_F(CudaDecode, OtherDenseLayers) {
  const int64_t sizes[][3] = {{20, 96, 40}, {3, 37, 19}, {1, 96, 40}};
  for (const auto& [rows, inputs, outputs] : sizes) {
    const Tensor x = narrow({rows, inputs});
    const Dense layer = layer_of(rows, inputs, outputs, true,
                                 {.norm = Around::kLayer,
                                  .bias = true,
                                  .activation = Activation::kGelu,
                                  .factor = true,
                                  .residual = true});
    Dense wide = layer;
    for (Tensor* tensor : {&wide.linear.bias, &wide.factor, &wide.residual})
      *tensor = tensor->to(DType::kF32);
    // Five results in a row are rounded by up to half a step of bf16, and factors reach 4.
    expect_close(dense(x.to(gpu), there(layer)), dense(x.to(DType::kF32), wide), 20 * kHalfStep,
                 "dense");
  }
}

// Logits of more rows come from a product whose sums are not rounded, with a bias in bf16 or none.
TEST_F(CudaDecode, LogitsOfManyRows) {
  for (const int64_t outputs : {40, 1003})
    for (const bool bias : {false, true}) {
      const Tensor x = narrow({70, 96});
      const Dense layer = layer_of(70, 96, outputs, false, {.bias = bias});
      expect_dense(x, layer, dense(x.to(gpu), there(layer), DType::kF32),
                   fmt::format("96 to {}", outputs));
    }
}

TEST_F(CudaDecode, EmbedsTokensAndPositions) {
  const Tensor tokens = normal_tensor({50, 300}, random),
               positions = normal_tensor({9, 300}, random);
  Tensor ids({3}, DType::kI64), where({3}, DType::kI64);
  for (int64_t i = 0; i < 3; ++i)
    ids.data<int64_t>()[i] = 49 - 7 * i, where.data<int64_t>()[i] = 3 * i;
  const Tensor gpu_ids = ids.to(gpu), gpu_where = where.to(gpu);
  EXPECT_TRUE(
      test::same_bits(here(embed_tokens(tokens.to(gpu), positions.to(gpu), gpu_ids, gpu_where)),
                      embed_tokens(tokens, positions, ids, where)));
  EXPECT_TRUE(test::same_bits(here(embed_tokens(tokens.to(gpu), {}, gpu_ids, gpu_where)),
                              embed_tokens(tokens, {}, ids, where)));
}

TEST_F(CudaDecode, PlacesHeadsAndAttends) {
  constexpr int64_t kBatch = 3, kHeads = 4, kKeyHeads = 2;
  for (const int64_t size : {6, 64, 100})
    for (const bool with_norm : {false, true}) {
      Features features = {.counts = {3, 70, 1, 130}, .z = {}, .log_alpha = {}};
      features.z = normal_tensor({features.total(), size}, random);
      features.log_alpha = normal_tensor({features.total()}, random);
      const int64_t columns = (kHeads + 2 * kKeyHeads) * size;
      const Tensor rows = normal_tensor({kBatch, columns}, random);
      Placement placement = {.head_size = size, .epsilon = 1e-5};
      if (with_norm) {
        placement.q_norm = normal_tensor({size}, random);
        placement.k_norm = normal_tensor({size}, random);
      }
      placement.frequencies = normal_tensor({size / 3}, random);
      Tensor where({kBatch}, DType::kI64);
      for (int64_t b = 0; b < kBatch; ++b) where.data<int64_t>()[b] = 5 * b;

      const auto run = [&](const Device& device) {
        Placement on = placement;
        for (Tensor* tensor : {&on.q_norm, &on.k_norm, &on.frequencies})
          *tensor = tensor->to(device);
        const Tensor own = rows.clone().to(device);
        RowHeads q = {own, {0, size}, kHeads};
        RowHeads k = {own, {kHeads * size, size}, kKeyHeads};
        const RowHeads v = {own, {(kHeads + kKeyHeads) * size, size}, kKeyHeads};
        place_heads(on, where.to(device), q, k);
        const Features there = features.to(device);
        LinearAttentionState state = new_linear_attention_state(kBatch, there);
        linear_attention_step(q, k, v, there, state);
        device.synchronize();  // steps of one state do not overlap
        return std::pair{own, linear_attention_step(q, k, v, there, state)};
      };
      const auto [cpu_rows, cpu_out] = run({});
      const auto [gpu_rows, gpu_out] = run(gpu);
      // Angles reach 30, and their rounding is that of the product.
      expect_close(gpu_rows, cpu_rows, 64 * kEps * std::sqrt(static_cast<double>(size)), "heads");
      // An error in q and k is multiplied by |z||x| in an exponent.
      expect_close(gpu_out, cpu_out, 64 * kEps * static_cast<double>(size) * 4, "attention");
    }
}

}  // namespace
}  // namespace dofla
