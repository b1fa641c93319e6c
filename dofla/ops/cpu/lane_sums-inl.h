// Sums over the lanes of many vectors. Included once for every instruction set.
#if defined(DOFLA_LANE_SUMS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DOFLA_LANE_SUMS_INL_H
#undef DOFLA_LANE_SUMS_INL_H
#else
#define DOFLA_LANE_SUMS_INL_H
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace dofla::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
// sums[4 r + n] is the sum of the lanes of v[n][r], in pairs of the same distance as SumOfLanes
// has, 8, 4, 2 and 1: all sixteen together take little more than one.
HWY_INLINE void sum_lanes_of_sixteen(const hn::Vec<hn::ScalableTag<float>> (&v)[4][4],
                                     float* sums) {
  __m512 rows[4];  // of v[n], with four lanes of each
  for (int n = 0; n < 4; ++n) {
    const auto fold = [](__m512 a, __m512 b) HWY_ATTR {
      return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    };
    const __m512 a = fold(v[n][0].raw, v[n][1].raw), b = fold(v[n][2].raw, v[n][3].raw);
    rows[n] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  }
  const auto fold = [](__m512 a, __m512 b) HWY_ATTR {
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
  };
  const __m512 a = fold(rows[0], rows[1]), b = fold(rows[2], rows[3]);
  _mm512_storeu_ps(sums,
                   _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd)));
}
#endif

}  // namespace dofla::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
