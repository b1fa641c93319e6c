// With u = (x − mean) · scale the normalised row and h = grad_y · weight,
//   grad_x = addend + scale · (h − mean(h) − u · mean(h u)),
// where RMS norms have no mean to subtract, neither from x nor from h.
#include <algorithm>
#include <cmath>
#include <vector>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/vector_rows.h"
#include "dofla/ops/norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dofla/ops/cpu/norm_backward.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h: it is compiled for the target chosen there.
#include "dofla/ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dofla::cpu::HWY_NAMESPACE {

HWY_INLINE float sum(const float* x, int64_t n) {
  const auto step = [](Vector total, Vector a) { return hn::Add(total, a); };
  return lanes_sum(fold(n, hn::Zero(Floats()), 0.0f, step, x));
}

HWY_INLINE float dot_product(const float* x, const float* y, int64_t n) {
  const auto step = [](Vector total, Vector a, Vector b) { return hn::MulAdd(a, b, total); };
  return lanes_sum(fold(n, hn::Zero(Floats()), 0.0f, step, x, y));
}

// `unit` is a workspace of one row. addend, grad_weight and grad_bias may be null.
void NormBackwardRow(const float* x, const float* weight, const float* grad_y, const float* addend,
                     bool centered, double epsilon, int64_t n, float* unit, float* grad_x,
                     float* grad_weight, float* grad_bias) {
  const float count = static_cast<float>(n);
  const Vector mean = hn::Set(Floats(), centered ? sum(x, n) / count : 0.0f);
  map(
      n, unit, [&](Vector a) { return hn::Sub(a, mean); }, x);
  const double variance = dot_product(unit, unit, n) / static_cast<double>(n);
  const Vector scale = hn::Set(Floats(), static_cast<float>(1 / std::sqrt(variance + epsilon)));
  map(
      n, unit, [&](Vector a) { return hn::Mul(a, scale); }, fixed(unit));
  if (grad_weight != nullptr)
    map(
        n, grad_weight, [](Vector g, Vector u, Vector w) { return hn::MulAdd(g, u, w); }, grad_y,
        fixed(unit), fixed(grad_weight));
  if (grad_bias != nullptr)
    map(
        n, grad_bias, [](Vector g, Vector b) { return hn::Add(g, b); }, grad_y, fixed(grad_bias));
  map(
      n, grad_x, [](Vector g, Vector w) { return hn::Mul(g, w); }, grad_y, weight);
  const Vector mean_h = hn::Set(Floats(), centered ? sum(grad_x, n) / count : 0.0f);
  const Vector mean_hu = hn::Set(Floats(), dot_product(grad_x, unit, n) / count);
  map(
      n, grad_x,
      [&](Vector h, Vector u) {
        return hn::Mul(scale, hn::NegMulAdd(u, mean_hu, hn::Sub(h, mean_h)));
      },
      fixed(grad_x), fixed(unit));
  if (addend != nullptr)
    map(
        n, grad_x, [](Vector g, Vector a) { return hn::Add(g, a); }, fixed(grad_x), addend);
}

}  // namespace dofla::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dofla::cpu {
namespace {

HWY_EXPORT(NormBackwardRow);

constexpr int64_t kBlockRows = 64;

// Every block of rows leaves its own sums for weight and bias; they are added in order, whichever
// thread computed them.
void norm_backward(const Tensor& x, const Tensor& weight, bool centered, double epsilon,
                   const Tensor& grad_y, const Tensor& addend, Tensor& grad_x, Tensor* grad_weight,
                   Tensor* grad_bias) {
  const int64_t width = x.size(-1), rows = x.count() / width;
  const int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
  const auto zeros_for = [&](const Tensor* wanted) {
    return std::vector<float>(static_cast<size_t>(wanted == nullptr ? 0 : blocks * width), 0.0f);
  };
  std::vector<float> weight_sums = zeros_for(grad_weight), bias_sums = zeros_for(grad_bias);
  const float* added = addend.defined() ? addend.data<float>() : nullptr;
  float* to = grad_x.data<float>();
  parallel_for(blocks, [&](int64_t block) {
    thread_local std::vector<float> unit;
    unit.resize(static_cast<size_t>(width));
    float* of_weight = grad_weight == nullptr ? nullptr : weight_sums.data() + block * width;
    float* of_bias = grad_bias == nullptr ? nullptr : bias_sums.data() + block * width;
    for (int64_t r = block * kBlockRows; r < std::min(rows, (block + 1) * kBlockRows); ++r)
      HWY_DYNAMIC_DISPATCH(NormBackwardRow)
    (x.data<float>() + r * width, weight.data<float>(), grad_y.data<float>() + r * width,
     added == nullptr ? nullptr : added + r * width, centered, epsilon, width, unit.data(),
     to + r * width, of_weight, of_bias);
  });
  for (int64_t block = 0; block < blocks; ++block) {
    if (grad_weight != nullptr)
      add_scaled(weight_sums.data() + block * width, 1, width, grad_weight->data<float>());
    if (grad_bias != nullptr)
      add_scaled(bias_sums.data() + block * width, 1, width, grad_bias->data<float>());
  }
}

void layer_norm_backward(const Tensor& x, const Tensor& weight, double epsilon,
                         const Tensor& grad_y, const Tensor& addend, Tensor& grad_x,
                         Tensor* grad_weight, Tensor* grad_bias) {
  norm_backward(x, weight, true, epsilon, grad_y, addend, grad_x, grad_weight, grad_bias);
}

void rms_norm_backward(const Tensor& x, const Tensor& weight, double epsilon, const Tensor& grad_y,
                       const Tensor& addend, Tensor& grad_x, Tensor* grad_weight) {
  norm_backward(x, weight, false, epsilon, grad_y, addend, grad_x, grad_weight, nullptr);
}

}  // namespace

const NormBackward kNormBackward = {.layer_norm = layer_norm_backward,
                                    .rms_norm = rms_norm_backward};

}  // namespace dofla::cpu
#endif
