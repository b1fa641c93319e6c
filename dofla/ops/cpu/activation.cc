#include "dofla/ops/activation.h"

#include <algorithm>

#include "dofla/core/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dofla/ops/cpu/activation.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// After highway.h: it needs the target that foreach_target.h chose.
#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace dofla::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

HWY_INLINE Vector constant(float x) {
  return hn::Set(Floats(), x);
}

HWY_INLINE Vector exp_of_minus(Vector x) {
  // Past e⁸⁸ Highway's Exp does not give infinity but NaN.
  return hn::Exp(Floats(), hn::Min(hn::Neg(x), constant(88)));
}

HWY_INLINE Vector sigmoid(Vector x) {
  const Vector one = constant(1);
  return hn::Div(one, hn::Add(one, exp_of_minus(x)));
}

// s and 1 − s, both to full precision: near s = 1 the difference would cancel.
struct SigmoidPair {
  Vector s, rest;
};

HWY_INLINE SigmoidPair sigmoid_pair(Vector x) {
  const Vector one = constant(1), e = exp_of_minus(x);
  const Vector s = hn::Div(one, hn::Add(one, e));
  return {s, hn::Mul(e, s)};
}

template <size_t N>
HWY_INLINE Vector polynomial(const float (&coefficients)[N], Vector x) {
  Vector sum = constant(coefficients[N - 1]);
  for (size_t i = N - 1; i-- > 0;) sum = hn::MulAdd(sum, x, constant(coefficients[i]));
  return sum;
}

// erf to 1.5e-7: an odd polynomial up to 1, beyond it 1 − e^(−x²) Q(1/(1 + x/2)). Both are
// Chebyshev fits in double precision; past 4.2 the float result is 1.
HWY_INLINE Vector erf(Vector x) {
  constexpr float kNear[] = {1.128379167e+00f,  -3.761263848e-01f, 1.128378262e-01f,
                             -2.686543831e-02f, 5.221053415e-03f,  -8.484396585e-04f,
                             1.126825413e-04f,  -9.673591454e-06f};
  constexpr float kFar[] = {-1.054160603e-04f, 2.840762199e-01f,  2.659106527e-01f,
                            3.215643749e-01f,  -3.505695307e-02f, 4.496222629e-01f,
                            -3.544715463e-01f, 5.142970811e-02f,  1.714165373e-02f};
  const Floats d;
  const Vector one = constant(1);
  const Vector size = hn::Min(hn::Abs(x), constant(4.2f));
  const Vector square = hn::Mul(size, size);
  const Vector near = hn::Mul(x, polynomial(kNear, square));
  const Vector t = hn::Div(one, hn::MulAdd(size, constant(0.5f), one));
  const Vector tail = hn::Mul(hn::Exp(d, hn::Neg(square)), polynomial(kFar, t));
  const Vector far = hn::CopySign(hn::Sub(one, tail), x);
  return hn::IfThenElse(hn::Lt(size, one), near, far);
}

HWY_INLINE Vector clamp(Vector x, float limit) {
  return hn::Clamp(x, constant(-limit), constant(limit));
}

// Applies body to count floats; the last, partial vector is padded.
template <class Body>
HWY_INLINE void map(float* x, int64_t count, const Body& body) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(body(hn::LoadU(d, x + i)), d, x + i);
  if (i == count) return;
  HWY_ALIGN float rest[HWY_MAX_BYTES / sizeof(float)] = {};
  std::copy_n(x + i, count - i, rest);
  hn::Store(body(hn::Load(d, rest)), d, rest);
  std::copy_n(rest, count - i, x + i);
}

// The same with grad = body(x, grad).
template <class Body>
HWY_INLINE void map(const float* x, float* grad, int64_t count, const Body& body) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    hn::StoreU(body(hn::LoadU(d, x + i), hn::LoadU(d, grad + i)), d, grad + i);
  if (i == count) return;
  HWY_ALIGN float rest_x[HWY_MAX_BYTES / sizeof(float)] = {};
  HWY_ALIGN float rest[HWY_MAX_BYTES / sizeof(float)] = {};
  std::copy_n(x + i, count - i, rest_x);
  std::copy_n(grad + i, count - i, rest);
  hn::Store(body(hn::Load(d, rest_x), hn::Load(d, rest)), d, rest);
  std::copy_n(rest, count - i, grad + i);
}

void Gelu(float* x, int64_t count) {
  map(x, count, [](Vector v) HWY_ATTR {
    const Vector cdf2 = hn::Add(constant(1), erf(hn::Mul(v, constant(0.70710678f))));
    return hn::Mul(hn::Mul(v, constant(0.5f)), cdf2);
  });
}

void GeluTanh(float* x, int64_t count) {  // ½(1 + tanh u) is sigmoid(2u)
  map(x, count, [](Vector v) HWY_ATTR {
    const Vector inner = hn::MulAdd(hn::Mul(hn::Mul(v, v), constant(0.044715f)), v, v);
    return hn::Mul(v, sigmoid(hn::Mul(constant(2 * 0.79788456f), inner)));
  });
}

void Silu(float* x, int64_t count) {
  map(x, count, [](Vector v) HWY_ATTR { return hn::Mul(v, sigmoid(v)); });
}

// The derivatives are 0 or 1 to the last bit long before their arguments reach the limits below,
// past which products of something huge with something vanishing would be NaN.
void GeluBackward(const float* x, float* grad, int64_t count) {  // Φ(x) + x φ(x)
  map(x, grad, count, [](Vector v, Vector g) HWY_ATTR {
    v = clamp(v, 13.0f);
    const Vector cdf2 = hn::Add(constant(1), erf(hn::Mul(v, constant(0.70710678f))));
    const Vector bell = hn::Exp(Floats(), hn::Mul(hn::Mul(v, v), constant(-0.5f)));
    const Vector slope = hn::Mul(hn::Mul(v, constant(0.39894228f)), bell);
    return hn::Mul(g, hn::MulAdd(constant(0.5f), cdf2, slope));
  });
}

void GeluTanhBackward(const float* x, float* grad, int64_t count) {  // s + x s (1 − s) (2u)'
  map(x, grad, count, [](Vector v, Vector g) HWY_ATTR {
    v = clamp(v, 30.0f);
    const Vector square = hn::Mul(hn::Mul(v, v), constant(0.044715f));
    const auto [s, rest] =
        sigmoid_pair(hn::Mul(constant(2 * 0.79788456f), hn::MulAdd(square, v, v)));
    const Vector inner =
        hn::Mul(constant(2 * 0.79788456f), hn::MulAdd(square, constant(3), constant(1)));
    return hn::Mul(g, hn::MulAdd(s, hn::Mul(hn::Mul(v, inner), rest), s));
  });
}

void SiluBackward(const float* x, float* grad, int64_t count) {  // s (1 + x (1 − s))
  map(x, grad, count, [](Vector v, Vector g) HWY_ATTR {
    v = clamp(v, 88.0f);
    const auto [s, rest] = sigmoid_pair(v);
    return hn::Mul(g, hn::MulAdd(s, hn::Mul(v, rest), s));
  });
}

}  // namespace dofla::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dofla::cpu {
namespace {

HWY_EXPORT(Gelu);
HWY_EXPORT(GeluTanh);
HWY_EXPORT(Silu);
HWY_EXPORT(GeluBackward);
HWY_EXPORT(GeluTanhBackward);
HWY_EXPORT(SiluBackward);

constexpr int64_t kBlock = 4096;  // a multiple of every vector width

void activate_block(Activation activation, float* x, int64_t count) {
  switch (activation) {
    case Activation::kGelu:
      return HWY_DYNAMIC_DISPATCH(Gelu)(x, count);
    case Activation::kGeluTanh:
      return HWY_DYNAMIC_DISPATCH(GeluTanh)(x, count);
    case Activation::kSilu:
      return HWY_DYNAMIC_DISPATCH(Silu)(x, count);
    case Activation::kRelu:
      for (int64_t i = 0; i < count; ++i) x[i] = std::max(x[i], 0.0f);
  }
}

void activate_block_backward(Activation activation, const float* x, float* grad, int64_t count) {
  switch (activation) {
    case Activation::kGelu:
      return HWY_DYNAMIC_DISPATCH(GeluBackward)(x, grad, count);
    case Activation::kGeluTanh:
      return HWY_DYNAMIC_DISPATCH(GeluTanhBackward)(x, grad, count);
    case Activation::kSilu:
      return HWY_DYNAMIC_DISPATCH(SiluBackward)(x, grad, count);
    case Activation::kRelu:
      for (int64_t i = 0; i < count; ++i) grad[i] = x[i] > 0 ? grad[i] : 0.0f;
  }
}

// Calls body(first, count) for every block of the elements.
template <class Body>
void in_blocks(int64_t count, const Body& body) {
  const int64_t blocks = (count + kBlock - 1) / kBlock;
  parallel_for(blocks, [&](int64_t i) { body(i * kBlock, std::min(kBlock, count - i * kBlock)); });
}

void activate(Activation activation, Tensor& x) {
  float* data = x.data<float>();
  in_blocks(x.count(), [&](int64_t i, int64_t n) { activate_block(activation, data + i, n); });
}

void activate_backward(Activation activation, const Tensor& x, Tensor& grad) {
  const float* from = x.data<float>();
  float* to = grad.data<float>();
  in_blocks(x.count(), [&](int64_t i, int64_t n) {
    activate_block_backward(activation, from + i, to + i, n);
  });
}

void multiply(Tensor& x, const Tensor& y) {
  float* to = x.data<float>();
  const float* from = y.data<float>();
  parallel_rows(x.count(), [&](int64_t i) { to[i] *= from[i]; });
}

void add(Tensor& x, const Tensor& y) {
  float* to = x.data<float>();
  const float* from = y.data<float>();
  parallel_rows(x.count(), [&](int64_t i) { to[i] += from[i]; });
}

void subtract(float factor, const Tensor& y, Tensor& x) {
  float* to = x.data<float>();
  const float* from = y.data<float>();
  parallel_rows(x.count(), [&](int64_t i) { to[i] = factor * (to[i] - from[i]); });
}

void scale(float factor, Tensor& x) {
  float* to = x.data<float>();
  parallel_rows(x.count(), [&](int64_t i) { to[i] *= factor; });
}

}  // namespace

const ActivationBackend kActivation = {.activate = activate,
                                       .activate_backward = activate_backward,
                                       .multiply = multiply,
                                       .add = add,
                                       .subtract = subtract,
                                       .scale = scale};

}  // namespace dofla::cpu
#endif
