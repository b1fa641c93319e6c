#include "dofla/ops/norm.h"

#include <cmath>

#include "dofla/core/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dofla/ops/cpu/norm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace dofla::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

float SumOfSquares(const float* x, float mean, int64_t count) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const Vector center = hn::Set(d, mean);
  Vector sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const Vector off = hn::Sub(hn::LoadU(d, x + i), center);
    sum = hn::MulAdd(off, off, sum);
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < count; ++i) total += (x[i] - mean) * (x[i] - mean);
  return total;
}

float Sum(const float* x, int64_t count) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Vector sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) sum = hn::Add(sum, hn::LoadU(d, x + i));
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < count; ++i) total += x[i];
  return total;
}

// y = (x − mean) · scale · weight + bias; bias may be null.
void Apply(const float* x, float mean, float scale, const float* weight, const float* bias,
           int64_t count, float* y) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const Vector center = hn::Set(d, mean), factor = hn::Set(d, scale);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const Vector unit = hn::Mul(hn::Sub(hn::LoadU(d, x + i), center), factor);
    const Vector offset = bias == nullptr ? hn::Zero(d) : hn::LoadU(d, bias + i);
    hn::StoreU(hn::MulAdd(unit, hn::LoadU(d, weight + i), offset), d, y + i);
  }
  for (; i < count; ++i)
    y[i] = (x[i] - mean) * scale * weight[i] + (bias == nullptr ? 0.0f : bias[i]);
}

void LayerNormRow(const float* x, const float* weight, const float* bias, double epsilon,
                  int64_t count, float* y) {
  const float mean = Sum(x, count) / static_cast<float>(count);
  const double variance = SumOfSquares(x, mean, count) / static_cast<double>(count);
  Apply(x, mean, static_cast<float>(1 / std::sqrt(variance + epsilon)), weight, bias, count, y);
}

void RmsNormRow(const float* x, const float* weight, double epsilon, int64_t count, float* y) {
  const double square = SumOfSquares(x, 0, count) / static_cast<double>(count);
  Apply(x, 0, static_cast<float>(1 / std::sqrt(square + epsilon)), weight, nullptr, count, y);
}

}  // namespace dofla::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dofla::cpu {
namespace {

HWY_EXPORT(LayerNormRow);
HWY_EXPORT(RmsNormRow);

void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon,
                Tensor& y) {
  const int64_t width = x.size(-1);
  const float* from = x.data<float>();
  const float* shift = bias.defined() ? bias.data<float>() : nullptr;
  float* to = y.data<float>();
  parallel_rows(x.count() / width, [&](int64_t r) {
    HWY_DYNAMIC_DISPATCH(LayerNormRow)
    (from + r * width, weight.data<float>(), shift, epsilon, width, to + r * width);
  });
}

void rms_norm(const Tensor& x, const Tensor& weight, double epsilon, Tensor& y) {
  const int64_t width = x.size(-1);
  const float* from = x.data<float>();
  float* to = y.data<float>();
  parallel_rows(x.count() / width, [&](int64_t r) {
    HWY_DYNAMIC_DISPATCH(RmsNormRow)
    (from + r * width, weight.data<float>(), epsilon, width, to + r * width);
  });
}

}  // namespace

const NormForward kNorm = {.layer_norm = layer_norm, .rms_norm = rms_norm};

}  // namespace dofla::cpu
#endif
