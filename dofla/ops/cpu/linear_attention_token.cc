// The recurrent form: one token, one pass over the state.
#include "dofla/ops/cpu/linear_attention_chunk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dofla/ops/cpu/linear_attention_token.cc"
#include <hwy/foreach_target.h>

#include "dofla/ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dofla::cpu {
namespace HWY_NAMESPACE {

// One token's factors, feature by feature.
struct Token {
  const float* decay;  // what is left of the old sums
  const float* key;
  const float* query;
};

// b_m ← decay_m b_m + key_m v and out = Σ_m query_m b_m / denominator, for kVectors vectors of the
// head width at once: out stays in registers while b passes by.
template <int kVectors>
HWY_INLINE void sweep_values(const Token& token, const float* v, const HeadState& state, int64_t at,
                             float inverse, float* out) {
  const Floats d;
  Vector value[kVectors], total[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    value[i] = load(v + at + i * lanes());
    total[i] = hn::Zero(d);
  }
  for (int64_t m = 0; m < state.count; ++m) {
    float* b = state.b + m * state.width + at;
    const Vector decay = hn::Set(d, token.decay[m]), key = hn::Set(d, token.key[m]);
    const Vector query = hn::Set(d, token.query[m]);
    for (int i = 0; i < kVectors; ++i) {
      const Vector fresh = hn::MulAdd(key, value[i], hn::Mul(decay, load(b + i * lanes())));
      store(fresh, b + i * lanes());
      total[i] = hn::MulAdd(query, fresh, total[i]);
    }
  }
  for (int i = 0; i < kVectors; ++i)
    store(hn::Mul(total[i], hn::Set(d, inverse)), out + at + i * lanes());
}

HWY_INLINE void sweep_value(const Token& token, const float* v, const HeadState& state, int64_t at,
                            float inverse, float* out) {
  float total = 0;
  for (int64_t m = 0; m < state.count; ++m) {
    float& b = state.b[m * state.width + at];
    b = token.decay[m] * b + token.key[m] * v[at];
    total += token.query[m] * b;
  }
  out[at] = total * inverse;
}

void AttendToken(const float* log_q, const float* log_k, const float* v, HeadState& state,
                 float* scratch, float* out) {
  const int64_t count = state.count, width = state.width;
  float* decay = scratch;
  float* key = scratch + count;
  float* query = scratch + 2 * count;

  map(
      count, query, [](Vector seen, Vector k) { return hn::Max(seen, k); }, fixed(state.log_max),
      log_k);  // the new peak, until it is needed no more
  const float* peak = query;
  map(
      count, decay, [](Vector seen, Vector top) { return exp(hn::Sub(seen, top)); },
      fixed(state.log_max), peak);
  map(
      count, key, [](Vector k, Vector top) { return exp(hn::Sub(k, top)); }, log_k, peak);
  map(
      count, state.a, [](Vector a, Vector left, Vector k) { return hn::MulAdd(a, left, k); },
      fixed(state.a), fixed(decay), fixed(key));
  map(
      count, state.log_max, [](Vector top) { return top; }, peak);

  const float shift = largest_sum(log_q, peak, count);
  const Vector down = hn::Set(Floats(), shift);
  map(
      count, query, [&](Vector q, Vector top) { return exp(hn::Sub(hn::Add(q, top), down)); },
      log_q, fixed(state.log_max));
  const float denominator = lanes_sum(fold(
      count, hn::Zero(Floats()), 0.0f,
      [](Vector acc, Vector q, Vector a) { return hn::MulAdd(q, a, acc); }, fixed(query),
      fixed(state.a)));

  const Token token{decay, key, query};
  const float inverse = 1.0f / denominator;
  int64_t at = 0;
  for (; at + 4 * lanes() <= width; at += 4 * lanes())
    sweep_values<4>(token, v, state, at, inverse, out);
  for (; at + lanes() <= width; at += lanes()) sweep_values<1>(token, v, state, at, inverse, out);
  for (; at < width; ++at) sweep_value(token, v, state, at, inverse, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace dofla::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dofla::cpu {

HWY_EXPORT(AttendToken);

void attend_token(const float* log_q, const float* log_k, const float* v, HeadState& state,
                  float* scratch, float* out) {
  HWY_DYNAMIC_DISPATCH(AttendToken)(log_q, log_k, v, state, scratch, out);
}

}  // namespace dofla::cpu
#endif
