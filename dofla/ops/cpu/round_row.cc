#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "dofla/ops/cpu/whole_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dofla/ops/cpu/round_row.cc"
#include <hwy/foreach_target.h>

#include "dofla/ops/cpu/weight_loads-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dofla::cpu::HWY_NAMESPACE {

float RoundRow(const float* x, int64_t count, int16_t* to) {
  const Floats d;
  const hn::RebindToSigned<decltype(d)> words;
  const hn::Rebind<int16_t, decltype(words)> halves;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  // Magnitudes are in the order of their bits, with infinity and then NaN past all others.
  auto most = hn::Zero(words);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    most = hn::Max(most, hn::BitCast(words, hn::Abs(hn::LoadU(d, x + i))));
  int32_t bits = hn::GetLane(hn::MaxOfLanes(words, most));
  for (; i < count; ++i) {
    int32_t own = 0;
    std::memcpy(&own, x + i, sizeof own);
    bits = std::max(bits, own & 0x7fffffff);
  }
  float largest = 0;
  std::memcpy(&largest, &bits, sizeof largest);
  constexpr float kMost = 32767;
  // Of less than that the inverse would be infinite.
  if (!(largest > 2 * kMost / std::numeric_limits<float>::max() && std::isfinite(largest))) {
    std::fill_n(to, count, int16_t{0});
    return std::isfinite(largest) ? 0 : std::numeric_limits<float>::quiet_NaN();
  }
  const float inverse = kMost / largest;
  const auto factor = hn::Set(d, inverse);
  for (i = 0; i + lanes <= count; i += lanes) {
    const auto whole = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), factor));
    hn::StoreU(hn::DemoteTo(halves, whole), halves, to + i);
  }
  for (; i < count; ++i)
    to[i] = static_cast<int16_t>(std::clamp(std::nearbyint(x[i] * inverse), -kMost, kMost));
  return largest / kMost;
}

}  // namespace dofla::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dofla::cpu {

HWY_EXPORT(RoundRow);

float round_row(const float* x, int64_t count, int16_t* to) {
  return HWY_DYNAMIC_DISPATCH(RoundRow)(x, count, to);
}

}  // namespace dofla::cpu
#endif
