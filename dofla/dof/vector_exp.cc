#include "dofla/dof/vector_exp.h"

// Highway compiles this file once for every instruction set and picks one when it runs.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dofla/dof/vector_exp.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// After highway.h: it needs the target that foreach_target.h chose.
#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace dofla::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void exp_shifted(double* x, int64_t count, double shift) {
  const hn::ScalableTag<double> full;
  const hn::CappedTag<double, 1> one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(full));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    hn::StoreU(hn::Exp(full, hn::Sub(hn::LoadU(full, x + i), hn::Set(full, shift))), full, x + i);
  for (; i < count; ++i)
    hn::StoreU(hn::Exp(one, hn::Sub(hn::LoadU(one, x + i), hn::Set(one, shift))), one, x + i);
}

}  // namespace dofla::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dofla {

HWY_EXPORT(exp_shifted);

void exp_shifted(double* x, int64_t count, double shift) {
  HWY_DYNAMIC_DISPATCH(exp_shifted)(x, count, shift);
}

}  // namespace dofla
#endif
