#include "dofla/ops/cpu/feature_loss_row.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dofla/ops/cpu/feature_loss_row.cc"
#include <hwy/foreach_target.h>

#include "dofla/ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dofla::cpu {
namespace HWY_NAMESPACE {

double SoftmaxRow(float* teacher, float* student, int64_t n) {
  const Floats d;
  const float teacher_sum = exp_in_place(largest(teacher, n), n, teacher);
  // log p̂ is needed beside p̂, so the student's exponentials are taken twice over one row in cache.
  const float student_max = largest(student, n);
  const Vector down = hn::Set(d, student_max);
  const float student_sum = lanes_sum(fold(
      n, hn::Zero(d), kLowest,
      [&](Vector acc, Vector x) { return hn::Add(acc, exp(hn::Sub(x, down))); }, fixed(student)));
  const Vector normalizer = hn::Set(d, student_max + std::log(student_sum));
  const Vector teacher_scale = hn::Set(d, 1.0f / teacher_sum);
  Vector loss = hn::Zero(d);
  const auto step = [&](Vector weight, Vector logit) {
    const Vector p = hn::Mul(weight, teacher_scale);
    const Vector log_p_hat = hn::Sub(logit, normalizer);
    loss = hn::NegMulAdd(p, log_p_hat, loss);
    return hn::Sub(exp(log_p_hat), p);
  };
  map(n, student, step, fixed(teacher), fixed(student));
  return lanes_sum(loss);
}

double AttentionMseRow(float* teacher, float* student, int64_t n) {
  const Floats d;
  const Vector teacher_scale = hn::Set(d, 1.0f / exp_in_place(largest(teacher, n), n, teacher));
  const Vector student_scale = hn::Set(d, 1.0f / exp_in_place(largest(student, n), n, student));
  Vector loss = hn::Zero(d), mean = hn::Zero(d);  // mean: Σ p̂ (p̂ − p)
  map(
      n, teacher,
      [&](Vector weight, Vector weight_hat) {
        const Vector p_hat = hn::Mul(weight_hat, student_scale);
        const Vector error = hn::NegMulAdd(weight, teacher_scale, p_hat);
        loss = hn::MulAdd(error, error, loss);
        mean = hn::MulAdd(p_hat, error, mean);
        return error;
      },
      fixed(teacher), fixed(student));
  const Vector center = hn::Set(d, lanes_sum(mean));
  const Vector twice = hn::Add(student_scale, student_scale);
  map(
      n, student,
      [&](Vector error, Vector weight_hat) {
        return hn::Mul(hn::Mul(twice, weight_hat), hn::Sub(error, center));
      },
      fixed(teacher), fixed(student));
  return lanes_sum(loss);
}

double L2Row(float* teacher, float* student, float log_scale, int64_t n) {
  const Floats d;
  const Vector down = hn::Set(d, log_scale);
  Vector loss = hn::Zero(d);
  const auto step = [&](Vector logit, Vector logit_hat) {
    const Vector k_hat = exp(hn::Sub(logit_hat, down));
    const Vector error = hn::Sub(k_hat, exp(hn::Sub(logit, down)));
    loss = hn::MulAdd(error, error, loss);
    return hn::Mul(hn::Add(error, error), k_hat);
  };
  // The last vector is padded with -inf, not 0, so that the padding does not count.
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes())
    store(step(load(teacher + i), load(student + i)), student + i);
  if (i < n)
    store_part(step(load_part(teacher + i, n - i, kLowest), load_part(student + i, n - i, kLowest)),
               student + i, n - i);
  return lanes_sum(loss);
}

int64_t RowLogits(const float* product, const float* shift, float smallest, float* logits,
                  int64_t* vanished, int64_t n) {
  const Floats d;
  const Vector limit = hn::Set(d, smallest);
  int64_t found = 0;
  for (int64_t i = 0; i < n; i += lanes()) {
    const int64_t count = HWY_MIN(lanes(), n - i);
    const bool whole = count == lanes();
    const Vector x = whole ? load(product + i) : load_part(product + i, count, 1.0f);
    if (!hn::AllFalse(d, hn::Lt(x, limit))) {
      for (int64_t j = i; j < i + count; ++j)
        if (product[j] < smallest) vanished[found++] = j;
    }
    const Vector y = log(hn::Max(x, limit));
    const Vector kept = hn::IfThenElse(hn::IsNaN(x), x, y);
    if (whole) {
      store(hn::Add(kept, load(shift + i)), logits + i);
    } else {
      store_part(hn::Add(kept, load_part(shift + i, count, 0.0f)), logits + i, count);
    }
  }
  return found;
}

void DivideRow(const float* gradient, float* product, int64_t n) {
  map(
      n, product, [](Vector g, Vector x) { return hn::Div(g, x); }, gradient, fixed(product));
}

float LogSumExpOfSum(const float* x, const float* y, int64_t n) {
  const Floats d;
  const float top = largest_sum(x, y, n);
  const Vector down = hn::Set(d, top);
  const Vector sum = fold(
      n, hn::Zero(d), kLowest,
      [&](Vector acc, Vector a, Vector b) {
        return hn::Add(acc, exp(hn::Sub(hn::Add(a, b), down)));
      },
      x, y);
  return top + std::log(lanes_sum(sum));
}

void AddPairGradient(const float* x, const float* y, float log_sum, float gradient, float* grad_x,
                     float* grad_y, int64_t n) {
  const Floats d;
  const Vector down = hn::Set(d, log_sum), factor = hn::Set(d, gradient);
  const auto share = [&](Vector a, Vector b, Vector g) {
    return hn::MulAdd(factor, exp(hn::Sub(hn::Add(a, b), down)), g);
  };
  map(n, grad_x, share, x, y, fixed(grad_x));
  map(n, grad_y, share, x, y, fixed(grad_y));
}

}  // namespace HWY_NAMESPACE
}  // namespace dofla::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dofla::cpu {

HWY_EXPORT(SoftmaxRow);
HWY_EXPORT(AttentionMseRow);
HWY_EXPORT(L2Row);
HWY_EXPORT(RowLogits);
HWY_EXPORT(DivideRow);
HWY_EXPORT(LogSumExpOfSum);
HWY_EXPORT(AddPairGradient);

double softmax_row(float* teacher, float* student, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(SoftmaxRow)(teacher, student, n);
}
double attention_mse_row(float* teacher, float* student, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(AttentionMseRow)(teacher, student, n);
}
double l2_row(float* teacher, float* student, float log_scale, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(L2Row)(teacher, student, log_scale, n);
}
int64_t row_logits(const float* product, const float* shift, float smallest, float* logits,
                   int64_t* vanished, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(RowLogits)(product, shift, smallest, logits, vanished, n);
}
void divide_row(const float* gradient, float* product, int64_t n) {
  HWY_DYNAMIC_DISPATCH(DivideRow)(gradient, product, n);
}
float log_sum_exp_of_sum(const float* x, const float* y, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(LogSumExpOfSum)(x, y, n);
}
void add_pair_gradient(const float* x, const float* y, float log_sum, float gradient, float* grad_x,
                       float* grad_y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddPairGradient)(x, y, log_sum, gradient, grad_x, grad_y, n);
}

}  // namespace dofla::cpu
#endif
