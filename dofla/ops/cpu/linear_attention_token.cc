// The recurrent form: one token, one pass over the state.
#include <cmath>

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

// out = Σ_m query_m b_m / denominator, for kVectors vectors of the head width at once: out stays in
// registers while b passes by. Where the token joins the state, b_m ← decay_m b_m + key_m v before.
template <int kVectors, bool kJoins>
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
    const Vector query = hn::Set(d, token.query[m]);
    for (int i = 0; i < kVectors; ++i) {
      Vector now = load(b + i * lanes());
      if (kJoins) {
        now = hn::MulAdd(hn::Set(d, token.key[m]), value[i],
                         hn::Mul(hn::Set(d, token.decay[m]), now));
        store(now, b + i * lanes());
      }
      total[i] = hn::MulAdd(query, now, total[i]);
    }
  }
  for (int i = 0; i < kVectors; ++i)
    store(hn::Mul(total[i], hn::Set(d, inverse)), out + at + i * lanes());
}

template <bool kJoins>
HWY_INLINE void sweep_value(const Token& token, const float* v, const HeadState& state, int64_t at,
                            float inverse, float* out) {
  float total = 0;
  for (int64_t m = 0; m < state.count; ++m) {
    float& b = state.b[m * state.width + at];
    if (kJoins) b = token.decay[m] * b + token.key[m] * v[at];
    total += token.query[m] * b;
  }
  out[at] = total * inverse;
}

template <bool kJoins>
HWY_INLINE void sweep(const Token& token, const float* v, const HeadState& state, float inverse,
                      float* out) {
  int64_t at = 0;
  for (; at + 4 * lanes() <= state.width; at += 4 * lanes())
    sweep_values<4, kJoins>(token, v, state, at, inverse, out);
  for (; at + lanes() <= state.width; at += lanes())
    sweep_values<1, kJoins>(token, v, state, at, inverse, out);
  for (; at < state.width; ++at) sweep_value<kJoins>(token, v, state, at, inverse, out);
}

void AttendToken(const float* log_q, int64_t heads, const float* log_k, const float* v,
                 HeadState& state, float* scratch, float* out, float* log_sum,
                 int64_t log_sum_stride) {
  const int64_t count = state.count;
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

  const Token token{decay, key, query};
  for (int64_t head = 0; head < heads; ++head, log_q += count, out += state.width) {
    const float shift = largest_sum(log_q, state.log_max, count);
    const Vector down = hn::Set(Floats(), shift);
    map(
        count, query, [&](Vector q, Vector top) { return exp(hn::Sub(hn::Add(q, top), down)); },
        log_q, fixed(state.log_max));
    const float denominator = lanes_sum(fold(
        count, hn::Zero(Floats()), 0.0f,
        [](Vector acc, Vector q, Vector a) { return hn::MulAdd(q, a, acc); }, fixed(query),
        fixed(state.a)));
    if (log_sum != nullptr) log_sum[head * log_sum_stride] = shift + std::log(denominator);
    if (head == 0)
      sweep<true>(token, v, state, 1.0f / denominator, out);
    else
      sweep<false>(token, v, state, 1.0f / denominator, out);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dofla::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dofla::cpu {

HWY_EXPORT(AttendToken);

void attend_token(const float* log_q, int64_t heads, const float* log_k, const float* v,
                  HeadState& state, float* scratch, float* out, float* log_sum,
                  int64_t log_sum_stride) {
  HWY_DYNAMIC_DISPATCH(AttendToken)
  (log_q, heads, log_k, v, state, scratch, out, log_sum, log_sum_stride);
}

}  // namespace dofla::cpu
#endif
