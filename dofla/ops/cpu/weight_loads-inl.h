// Weights of any type as vectors of floats. Included once for every instruction set.
#if defined(DOFLA_WEIGHT_LOADS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DOFLA_WEIGHT_LOADS_INL_H
#undef DOFLA_WEIGHT_LOADS_INL_H
#else
#define DOFLA_WEIGHT_LOADS_INL_H
#endif

#include <hwy/highway.h>

#include "dofla/core/dtype.h"
#include "dofla/ops/cpu/lane_sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dofla::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

HWY_INLINE Vector load(const float* from) {
  return hn::LoadU(Floats(), from);
}

HWY_INLINE Vector load(const BFloat16* from) {  // a bfloat16 is the upper half of a float
  const hn::Rebind<uint16_t, Floats> halves;
  const hn::Rebind<uint32_t, Floats> words;
  const auto bits = hn::LoadU(halves, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(words, bits)));
}

HWY_INLINE Vector load(const Float16* from) {
  const hn::Rebind<hwy::float16_t, Floats> halves;
  return hn::PromoteTo(Floats(), hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(from)));
}

HWY_INLINE Vector load(const int8_t* from) {
  const hn::Rebind<int8_t, Floats> bytes;
  const hn::Rebind<int32_t, Floats> words;
  return hn::ConvertTo(Floats(), hn::PromoteTo(words, hn::LoadU(bytes, from)));
}

HWY_INLINE float widen_one(float x) {
  return x;
}
HWY_INLINE float widen_one(BFloat16 x) {
  return to_float(x);
}
HWY_INLINE float widen_one(Float16 x) {
  return to_float(x);
}
HWY_INLINE float widen_one(int8_t x) {
  return static_cast<float>(x);
}

// With the rounding of the vectors' MulAdd.
HWY_INLINE float mul_add(float a, float b, float c) {
  const hn::CappedTag<float, 1> d;
  return hn::GetLane(hn::MulAdd(hn::Set(d, a), hn::Set(d, b), hn::Set(d, c)));
}

// Rows of x that share a load of the weights: as many as the registers hold sums of.
constexpr int64_t kSharing = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

// Calls run(typed pointer).
template <class Run>
HWY_INLINE void with_type(const void* weight, DType dtype, const Run& run) {
  if (dtype == DType::kF32) run(static_cast<const float*>(weight));
  if (dtype == DType::kBF16) run(static_cast<const BFloat16*>(weight));
  if (dtype == DType::kF16) run(static_cast<const Float16*>(weight));
}

}  // namespace dofla::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
