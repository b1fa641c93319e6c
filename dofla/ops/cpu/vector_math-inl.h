// What the vectorised kernels share: exp, log and loops whose last, partial vector goes through a
// small buffer, so that no kernel reads or writes past its arrays. Included once per target by the
// Highway machinery; see vector_rows.cc for the frame that a kernel file needs.
#if defined(DOFLA_OPS_CPU_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DOFLA_OPS_CPU_VECTOR_MATH_INL_H_
#undef DOFLA_OPS_CPU_VECTOR_MATH_INL_H_
#else
#define DOFLA_OPS_CPU_VECTOR_MATH_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <limits>

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace dofla::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

HWY_INLINE int64_t lanes() {
  return static_cast<int64_t>(hn::Lanes(Floats()));
}

// Highway's Exp turns NaN into 0 and is defined up to 104 only.
HWY_INLINE Vector exp(Vector x) {
  const Floats d;
  const Vector y = hn::Exp(d, hn::Min(x, hn::Set(d, 104.0f)));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

HWY_INLINE Vector log(Vector x) {
  return hn::Log(Floats(), x);
}  // x normal and positive

HWY_INLINE Vector load(const float* x) {
  return hn::LoadU(Floats(), x);
}
HWY_INLINE void store(Vector v, float* x) {
  hn::StoreU(v, Floats(), x);
}

HWY_INLINE Vector load_part(const float* x, int64_t n, float fill) {
  HWY_ALIGN float buffer[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(hn::Set(Floats(), fill), Floats(), buffer);
  std::memcpy(buffer, x, static_cast<size_t>(n) * sizeof(float));
  return hn::Load(Floats(), buffer);
}
HWY_INLINE void store_part(Vector v, float* x, int64_t n) {
  HWY_ALIGN float buffer[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(v, Floats(), buffer);
  std::memcpy(x, buffer, static_cast<size_t>(n) * sizeof(float));
}

// out[i] = f(in[i]...) for i < n.
template <class F, class... In>
HWY_INLINE void map(int64_t n, float* out, const F& f, const In*... in) {
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) store(f(load(in + i)...), out + i);
  if (i < n) store_part(f(load_part(in + i, n - i, 0.0f)...), out + i, n - i);
}

// Folds f(accumulator, in[i]...) over i < n; `fill` stands in for what the last vector lacks and
// must leave the accumulator as it is.
template <class F, class... In>
HWY_INLINE Vector fold(int64_t n, Vector accumulator, float fill, const F& f, const In*... in) {
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) accumulator = f(accumulator, load(in + i)...);
  if (i < n) accumulator = f(accumulator, load_part(in + i, n - i, fill)...);
  return accumulator;
}

constexpr float kLowest = -std::numeric_limits<float>::infinity();

HWY_INLINE float lanes_sum(Vector v) {
  return hn::GetLane(hn::SumOfLanes(Floats(), v));
}
HWY_INLINE float lanes_max(Vector v) {
  return hn::GetLane(hn::MaxOfLanes(Floats(), v));
}

// A row that a kernel both reads and writes, as map and fold want it.
HWY_INLINE const float* fixed(float* x) {
  return x;
}

HWY_INLINE float largest(const float* x, int64_t n) {
  const auto step = [](Vector most, Vector a) { return hn::Max(most, a); };
  return lanes_max(fold(n, hn::Set(Floats(), kLowest), kLowest, step, x));
}

HWY_INLINE float largest_sum(const float* x, const float* y, int64_t n) {
  const auto step = [](Vector most, Vector a, Vector b) { return hn::Max(most, hn::Add(a, b)); };
  return lanes_max(fold(n, hn::Set(Floats(), kLowest), kLowest, step, x, y));
}

// x = exp(x − shift); returns the sum.
HWY_INLINE float exp_in_place(float shift, int64_t n, float* x) {
  const Vector down = hn::Set(Floats(), shift);
  Vector total = hn::Zero(Floats());
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) {
    const Vector y = exp(hn::Sub(load(x + i), down));
    total = hn::Add(total, y);
    store(y, x + i);
  }
  if (i < n) {
    const Vector y = exp(hn::Sub(load_part(x + i, n - i, kLowest), down));
    total = hn::Add(total, y);
    store_part(y, x + i, n - i);
  }
  return lanes_sum(total);
}

}  // namespace HWY_NAMESPACE
}  // namespace dofla::cpu
HWY_AFTER_NAMESPACE();

#endif  // DOFLA_OPS_CPU_VECTOR_MATH_INL_H_
