#include "dofla/ops/cpu/vector_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dofla/ops/cpu/vector_rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// After highway.h: it needs the target that foreach_target.h chose.
#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace dofla::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

float Dot(const float* a, const float* b, int64_t count) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Vector sum0 = hn::Zero(d), sum1 = sum0;
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    sum0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum0);
    sum1 = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), sum1);
  }
  for (; i + lanes <= count; i += lanes)
    sum0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum0);
  float total = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  for (; i < count; ++i) total += a[i] * b[i];
  return total;
}

void AddScaled(const float* x, float scale, int64_t count, float* y) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const Vector factor = hn::Set(d, scale);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    hn::StoreU(hn::MulAdd(hn::LoadU(d, x + i), factor, hn::LoadU(d, y + i)), d, y + i);
  for (; i < count; ++i) y[i] += scale * x[i];
}

void ScaleRow(float scale, int64_t count, float* x) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const Vector factor = hn::Set(d, scale);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), factor), d, x + i);
  for (; i < count; ++i) x[i] *= scale;
}

float RowMax(const float* x, int64_t count) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  float best = -std::numeric_limits<float>::infinity();
  Vector most = hn::Set(d, best);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) most = hn::Max(most, hn::LoadU(d, x + i));
  best = hn::GetLane(hn::MaxOfLanes(d, most));
  for (; i < count; ++i) best = std::max(best, x[i]);
  return best;
}

float ExpAndSum(float shift, int64_t count, float* x) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const Vector offset = hn::Set(d, shift);
  Vector sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const Vector e = hn::Exp(d, hn::Sub(hn::LoadU(d, x + i), offset));
    hn::StoreU(e, d, x + i);
    sum = hn::Add(sum, e);
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < count; ++i) total += x[i] = std::exp(x[i] - shift);
  return total;
}

float LogSumExp(const float* x, int64_t count) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const float shift = RowMax(x, count);
  const Vector offset = hn::Set(d, shift);
  Vector sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    sum = hn::Add(sum, hn::Exp(d, hn::Sub(hn::LoadU(d, x + i), offset)));
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < count; ++i) total += std::exp(x[i] - shift);
  return shift + std::log(total);
}

}  // namespace dofla::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dofla::cpu {

HWY_EXPORT(Dot);
HWY_EXPORT(AddScaled);
HWY_EXPORT(ScaleRow);
HWY_EXPORT(RowMax);
HWY_EXPORT(ExpAndSum);
HWY_EXPORT(LogSumExp);

float dot(const float* a, const float* b, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(Dot)(a, b, count);
}
void add_scaled(const float* x, float scale, int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(AddScaled)(x, scale, count, y);
}
void scale_row(float scale, int64_t count, float* x) {
  HWY_DYNAMIC_DISPATCH(ScaleRow)(scale, count, x);
}
float row_max(const float* x, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(RowMax)(x, count);
}
float log_sum_exp(const float* x, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(LogSumExp)(x, count);
}
float exp_and_sum(float shift, int64_t count, float* x) {
  return HWY_DYNAMIC_DISPATCH(ExpAndSum)(shift, count, x);
}

}  // namespace dofla::cpu
#endif
