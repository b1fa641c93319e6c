#include "dofla/ops/adam.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "dofla/core/parallel.h"
#include "dofla/core/random.h"
#include "dofla/ops/cpu/vector_rows.h"
#include "dofla/ops/rounding.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dofla/ops/cpu/adam.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h: it is compiled for the target chosen there.
#include "dofla/ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dofla::cpu::HWY_NAMESPACE {

void AdamRow(const AdamFactors& f, const float* gradient, int64_t count, float* mean, float* square,
             float* parameter) {
  const Floats d;
  const Vector rest1 = hn::Set(d, 1 - f.beta1), rest2 = hn::Set(d, 1 - f.beta2);
  const Vector beta2 = hn::Set(d, f.beta2), epsilon = hn::Set(d, f.epsilon);
  const Vector keep = hn::Set(d, f.keep), step = hn::Set(d, f.step);
  const Vector to_root = hn::Set(d, f.square_to_root);
  map(
      count, mean, [&](Vector g, Vector m) { return hn::MulAdd(hn::Sub(g, m), rest1, m); },
      gradient, fixed(mean));
  map(
      count, square,
      [&](Vector g, Vector s) { return hn::MulAdd(hn::Mul(g, g), rest2, hn::Mul(s, beta2)); },
      gradient, fixed(square));
  map(
      count, parameter,
      [&](Vector p, Vector m, Vector s) {
        const Vector root = hn::MulAdd(hn::Sqrt(s), to_root, epsilon);
        return hn::NegMulAdd(step, hn::Div(m, root), hn::Mul(p, keep));
      },
      fixed(parameter), fixed(mean), fixed(square));
}

}  // namespace dofla::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dofla::cpu {
namespace {

HWY_EXPORT(AdamRow);

// Elements at a time: four rows of them fit in the first cache.
constexpr int64_t kPart = kSquaresBlock;

// Up with the chance that makes the mean of what is stored the number itself: BF16 is the upper
// half of the bits, which within a binade and at its end are proportional to the number.
BFloat16 rounded_by_chance(float x, uint64_t chance) {
  constexpr uint32_t kExponent = 0x7f800000u;
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t more = (bits & kExponent) == kExponent ? 0 : chance & 0xffffu;
  return {static_cast<uint16_t>((bits + more) >> 16)};
}

// One part whose moments are in BF16: the step itself is made with what Adam has before it is
// rounded.
void step_part(const AdamFactors& factors, const AdamChance& chance, const float* gradient,
               int64_t count, BFloat16* mean, BFloat16* square, float* value) {
  std::array<float, kPart> wide_mean, wide_square;
  std::transform(mean, mean + count, wide_mean.begin(), [](BFloat16 x) { return to_float(x); });
  std::transform(square, square + count, wide_square.begin(),
                 [](BFloat16 x) { return to_float(x); });
  HWY_DYNAMIC_DISPATCH(AdamRow)
  (factors, gradient, count, wide_mean.data(), wide_square.data(), value);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = mixed(chance.key + static_cast<uint64_t>(chance.first + i));
    mean[i] = rounded_by_chance(wide_mean[static_cast<size_t>(i)], bits);
    square[i] = rounded_by_chance(wide_square[static_cast<size_t>(i)], bits >> 16);
  }
}

void step_part(const AdamFactors& factors, const AdamChance&, const float* gradient, int64_t count,
               float* mean, float* square, float* value) {
  HWY_DYNAMIC_DISPATCH(AdamRow)(factors, gradient, count, mean, square, value);
}

template <class Moment>
void step_parameter(AdamParameter& parameter, float scale) {
  const AdamFactors factors = adam_factors(parameter.options, parameter.moments.steps);
  const auto [key, first] = adam_chance(parameter.moments);
  const float* gradient = parameter.gradient.data<float>();
  auto* mean = parameter.moments.mean.data<Moment>();
  auto* square = parameter.moments.square.data<Moment>();
  float* value = parameter.value.data<float>();
  const int64_t elements = parameter.value.count();
  parallel_for(squares_blocks(elements), [&, key = key, first = first](int64_t part) {
    const int64_t at = part * kPart, count = std::min(kPart, elements - at);
    std::array<float, kPart> scaled;
    const float* from = gradient + at;
    if (scale != 1) {
      std::copy_n(from, count, scaled.data());
      scale_row(scale, count, scaled.data());
      from = scaled.data();
    }
    step_part(factors, {key, first + at}, from, count, mean + at, square + at, value + at);
  });
  if (parameter.copy.defined()) round_into(parameter.value, parameter.copy);
}

void step(std::span<AdamParameter> parameters, const Tensor& norm, double max_norm) {
  const double found = norm.defined() ? norm.data<double>()[0] : 0;
  if (!std::isfinite(found)) return;
  const float scale = clip_factor(found, max_norm);
  for (AdamParameter& parameter : parameters) {
    if (parameter.moments.mean.dtype() == DType::kBF16)
      step_parameter<BFloat16>(parameter, scale);
    else
      step_parameter<float>(parameter, scale);
  }
}

Tensor block_squares(std::span<const Tensor> gradients) {
  int64_t blocks = 0;
  for (const Tensor& gradient : gradients) blocks += squares_blocks(gradient.count());
  Tensor squares({blocks}, DType::kF64);
  double* to = squares.data<double>();
  for (const Tensor& gradient : gradients) {
    const float* data = gradient.data<float>();
    const int64_t count = gradient.count();
    parallel_for(squares_blocks(count), [&](int64_t part) {
      const float* from = data + part * kPart;
      const float* end = data + std::min((part + 1) * kPart, count);
      double sum = 0;  // in double: a square overflows float at 2⁶⁴
      for (; from < end; ++from) sum += static_cast<double>(*from) * *from;
      to[part] = sum;
    });
    to += squares_blocks(count);
  }
  return squares;
}

Tensor norm_of_blocks(const Tensor& squares, std::span<const Tensor> gradients) {
  const double* from = squares.data<double>();
  double sum = 0;
  for (const Tensor& gradient : gradients) {
    const double* end = from + squares_blocks(gradient.count());
    sum += std::accumulate(from, end, 0.0);
    from = end;
  }
  Tensor norm({1}, DType::kF64);
  norm.data<double>()[0] = std::sqrt(sum);
  return norm;
}

}  // namespace

const AdamBackend kAdam = {
    .block_squares = block_squares, .norm_of_blocks = norm_of_blocks, .step = step};

}  // namespace dofla::cpu
#endif
