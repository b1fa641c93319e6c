#include "dofla/ops/adam.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "dofla/core/parallel.h"
#include "dofla/core/random.h"
#include "dofla/ops/cpu/vector_rows.h"

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

int64_t part_count(int64_t elements) {
  return (elements + kPart - 1) / kPart;
}

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
void adam_part(const AdamFactors& factors, const AdamChance& chance, const float* gradient,
               int64_t count, BFloat16* mean, BFloat16* square, float* parameter) {
  std::array<float, kPart> wide_mean, wide_square;
  std::transform(mean, mean + count, wide_mean.begin(), [](BFloat16 x) { return to_float(x); });
  std::transform(square, square + count, wide_square.begin(),
                 [](BFloat16 x) { return to_float(x); });
  HWY_DYNAMIC_DISPATCH(AdamRow)
  (factors, gradient, count, wide_mean.data(), wide_square.data(), parameter);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = mixed(chance.key + static_cast<uint64_t>(chance.first + i));
    mean[i] = rounded_by_chance(wide_mean[static_cast<size_t>(i)], bits);
    square[i] = rounded_by_chance(wide_square[static_cast<size_t>(i)], bits >> 16);
  }
}

void adam_step_in_bf16(const Tensor& gradient, const AdamFactors& factors, AdamMoments& moments,
                       Tensor& parameter) {
  const AdamChance chance = adam_chance(moments);
  const float* from = gradient.data<float>();
  auto* mean = moments.mean.data<BFloat16>();
  auto* square = moments.square.data<BFloat16>();
  float* to = parameter.data<float>();
  parallel_for(part_count(parameter.count()), [&](int64_t part) {
    const int64_t at = part * kPart, count = std::min(kPart, parameter.count() - at);
    adam_part(factors, {chance.key, chance.first + at}, from + at, count, mean + at, square + at,
              to + at);
  });
}

void adam_step(const Tensor& gradient, const AdamOptions& options, AdamMoments& moments,
               Tensor& parameter) {
  const AdamFactors factors = adam_factors(options, moments.steps);
  if (moments.mean.dtype() == DType::kBF16)
    return adam_step_in_bf16(gradient, factors, moments, parameter);
  const float* from = gradient.data<float>();
  float* mean = moments.mean.data<float>();
  float* square = moments.square.data<float>();
  float* to = parameter.data<float>();
  parallel_for(part_count(parameter.count()), [&](int64_t part) {
    const int64_t at = part * kPart, count = std::min(kPart, parameter.count() - at);
    HWY_DYNAMIC_DISPATCH(AdamRow)(factors, from + at, count, mean + at, square + at, to + at);
  });
}

double sum_of_squares(std::span<const Tensor> all) {
  std::vector<std::vector<double>> blocks;
  for (const Tensor& x : all) blocks.push_back(block_squares(x));
  return total_squares(blocks);
}

void scale(float factor, Tensor& x) {
  float* data = x.data<float>();
  parallel_for(part_count(x.count()), [&](int64_t part) {
    scale_row(factor, std::min(kPart, x.count() - part * kPart), data + part * kPart);
  });
}

}  // namespace

const AdamBackend kAdam = {
    .adam_step = adam_step, .sum_of_squares = sum_of_squares, .scale = scale};

}  // namespace dofla::cpu

namespace dofla {

std::vector<double> block_squares(const Tensor& gradient) {
  const float* data = gradient.data<float>();
  const int64_t count = gradient.count();
  std::vector<double> blocks(static_cast<size_t>(cpu::part_count(count)));
  parallel_for(cpu::part_count(count), [&](int64_t part) {
    const float* from = data + part * cpu::kPart;
    const float* to = data + std::min((part + 1) * cpu::kPart, count);
    double sum = 0;  // in double: a square overflows float at 2⁶⁴
    for (; from < to; ++from) sum += static_cast<double>(*from) * *from;
    blocks[static_cast<size_t>(part)] = sum;
  });
  return blocks;
}

}  // namespace dofla
#endif
