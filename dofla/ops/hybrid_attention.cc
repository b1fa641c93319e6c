#include "dofla/ops/hybrid_attention.h"

#include <algorithm>

#include "dofla/ops/heads.h"
#include "dofla/ops/row_gather.h"

namespace dofla {
namespace {

const HybridAttentionBackend& on_device(const Tensor& x) {
  return x.device().is_cuda() ? cuda::kHybridAttention : cpu::kHybridAttention;
}

// [1, 1, rows]: first, first + 1, … up to `end`, and −1 from there on.
Tensor rows_from(int64_t first, int64_t end, int64_t rows, const Device& device) {
  Tensor index({1, 1, rows}, DType::kI32);
  for (int64_t r = 0; r < rows; ++r)
    index.data<int32_t>()[r] = first + r < end ? static_cast<int32_t>(first + r) : -1;
  return index.to(device);
}

// Rows of [B, T, H, D].
Tensor gather_tokens(const Tensor& rows, const Tensor& index) {
  const int64_t batch = rows.size(0), heads = rows.size(2), width = rows.size(3);
  return gather_rows(rows.reshape({batch, 1, rows.size(1), heads * width}), index)
      .reshape({batch, index.size(2), heads, width});
}

// The keys of the cache and the new ones, one after the other.
Tensor joined(const Tensor& cache, int64_t held, const Tensor& fresh) {
  if (held == 0) return fresh;
  Tensor all({fresh.size(0), fresh.size(1), held + fresh.size(2), fresh.size(3)}, fresh.dtype(),
             fresh.device());
  Tensor old = tokens_of(all, 0, held), rest = tokens_of(all, held, all.size(2));
  copy_heads(tokens_of(cache, 0, held), old);
  copy_heads(fresh, rest);
  return all;
}

// The queries and keys whose pairs are left to the features, in the rows that `queries` names.
struct Left {
  Tensor queries;  // [1, 1, R] I32
  Tensor q, k, v;
};
Left left_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& order,
             int64_t first) {
  Left left;
  left.queries = rows_from(first, q.size(2), order.size(2), q.device());
  left.q = gather_rows(q, left.queries);
  left.k = gather_rows(k, order);
  left.v = gather_rows(v, order);
  return left;
}

// T tokens after the `held` keys of the cache. Either no key has left yet, or the cache is full:
// every token that sees the state of keys that have left comes after an eviction.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
              const ExactKeys& exact, HybridAttentionState* state, int64_t held,
              AttentionTape* tape) {
  const Tensor all_k = held == 0 ? k : joined(state->k, held, k);
  const Tensor all_v = held == 0 ? v : joined(state->v, held, v);
  Tensor before;
  if (held > 0) {
    const Tensor old = state->score.reshape({k.size(0), k.size(1), exact.keys, 1});
    before = contiguous_heads(tokens_of(old, 0, held)).reshape({k.size(0), k.size(1), held});
  }
  const Evictions evictions = evict_keys(q, all_k, exact, before);
  AttentionTape whole;
  whole.out = exact_attention(q, all_k, all_v, exact, evictions, &whole.log_sum);
  whole.order = evictions.order;
  whole.kept = evictions.kept;
  if (!features.empty() && evictions.order.size(2) > 0) {
    const int64_t first = exact.keys - held;
    const Left left = left_of(q, all_k, all_v, evictions.order, first);
    AttentionTape alone;
    linear_attention(left.q, left.k, left.v, features, state == nullptr ? nullptr : &state->left,
                     kLinearAttentionChunk, &alone, exact.block);
    whole.left_out = alone.out;
    whole.left_log_sum = alone.log_sum;
    on_device(q).merge(q, whole.left_out, whole.left_log_sum, first, whole.out, whole.log_sum);
  }
  if (state != nullptr) {
    const int64_t rest = evictions.held.size(2);
    Tensor kept_k = tokens_of(state->k, 0, rest), kept_v = tokens_of(state->v, 0, rest);
    copy_heads(gather_rows(all_k, evictions.held), kept_k);
    copy_heads(gather_rows(all_v, evictions.held), kept_v);
    const Shape shape = {k.size(0), k.size(1), exact.keys, 1};
    Tensor kept_score = tokens_of(state->score.reshape(shape), 0, rest);
    copy_heads(evictions.score.reshape({k.size(0), k.size(1), rest, 1}), kept_score);
  }
  Tensor out = whole.out;
  if (tape != nullptr) *tape = std::move(whole);
  return out;
}

void require_hybrid(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features) {
  require_shape(v, k.shape(), "hybrid attention: v");
  if (features.empty()) return;
  require_queries_and_keys(q, k, features, "hybrid attention: q", "hybrid attention: k");
  require(features.subtract_norm,
          "hybrid attention: features without a norm term do not estimate the kernel");
}

}  // namespace

int64_t HybridAttentionState::bytes() const {
  return k.bytes() + v.bytes() + score.bytes() + (left.a.defined() ? left.bytes() : 0);
}

HybridAttentionState new_hybrid_attention_state(int64_t batch, int64_t key_heads, int64_t width,
                                                DType type, const Device& device,
                                                const Features& features, const ExactKeys& exact) {
  require_valid(exact);
  const Shape shape = {batch, key_heads, exact.keys, width};
  HybridAttentionState state = {Tensor::zeros(shape, type, device),
                                Tensor::zeros(shape, type, device),
                                Tensor::zeros({batch, key_heads, exact.keys}, DType::kF32, device),
                                {}};
  if (!features.empty()) state.left = new_linear_attention_state(batch, features);
  return state;
}

Tensor hybrid_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
                        const ExactKeys& exact, HybridAttentionState* state, int64_t past,
                        AttentionTape* tape) {
  require_valid(exact);
  require_hybrid(q, k, v, features);
  if (state == nullptr) return attend(q, k, v, features, exact, nullptr, 0, tape);
  require(tape == nullptr, "hybrid attention: a tape needs a whole sequence, found a state");
  // Where keys have left already and the cache is not full, the next tokens read the state without
  // adding to it: one at a time, fewer than a block.
  const int64_t tokens = q.size(2), held = keys_held(exact, past);
  const int64_t steps = past > exact.keys ? std::min(tokens, exact.keys - held) : 0;
  if (steps == 0) return attend(q, k, v, features, exact, state, held, nullptr);
  Tensor out({q.size(0), tokens, q.size(1), q.size(3)}, q.dtype(), q.device());
  const auto part = [](const Tensor& heads, int64_t begin, int64_t end) {
    return contiguous_heads(tokens_of(contiguous_heads(heads), begin, end));
  };
  const auto store = [&](const Tensor& from, int64_t begin, int64_t end) {
    Tensor to = heads_of_rows(out, begin, end);
    copy_heads(heads_of_rows(from, 0, from.size(1)), to);
  };
  for (int64_t t = 0; t < steps; ++t) {
    Tensor seen({q.size(0)}, DType::kI64);
    std::fill_n(seen.data<int64_t>(), seen.count(), past + t);
    store(hybrid_attention_step(part(q, t, t + 1), part(k, t, t + 1), part(v, t, t + 1), features,
                                exact, *state, seen.to(q.device())),
          t, t + 1);
  }
  if (steps < tokens)
    store(attend(part(q, steps, tokens), part(k, steps, tokens), part(v, steps, tokens), features,
                 exact, state, keys_held(exact, past + steps), nullptr),
          steps, tokens);
  return out;
}

Tensor hybrid_attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                             const Features& features, const ExactKeys& exact,
                             HybridAttentionState& state, const Tensor& past) {
  require_hybrid(q, k, v, features);
  require(q.size(2) == 1, "hybrid attention: a step of {} tokens", q.size(2));
  require_shape(past, {q.size(0)}, "hybrid attention: tokens seen");
  require_shape(state.k, {k.size(0), k.size(1), exact.keys, k.size(3)}, "hybrid attention: cache");
  return on_device(q).step(q, k, v, features, exact, state, past);
}

LinearAttentionGradients hybrid_attention_backward(const Tensor& q, const Tensor& k,
                                                   const Tensor& v, const Features& features,
                                                   const ExactKeys& exact, const Tensor& grad_out,
                                                   const AttentionTape& tape,
                                                   const GradientBuffers& buffers) {
  require_valid(exact);
  require_hybrid(q, k, v, features);
  require(tape.kept.defined(), "hybrid attention: a backward needs the forward's tape");
  const Evictions evictions = {tape.order, tape.kept, {}, {}};
  ExactAttentionGradients own =
      exact_attention_backward(q, k, v, exact, evictions, grad_out, tape, buffers);
  LinearAttentionGradients gradients = {own.q, own.k, own.v, zero_gradients(features)};
  if (!tape.left_out.defined()) return gradients;
  Tensor log_sum = tape.left_log_sum.clone();
  on_device(q).merge_backward(q, tape.left_out, tape.out, tape.log_sum, grad_out, exact.keys,
                              log_sum, gradients.q);
  const Left left = left_of(q, k, v, tape.order, exact.keys);
  const LinearAttentionGradients of_left = linear_attention_backward(
      left.q, left.k, left.v, features, gather_tokens(grad_out, left.queries),
      kLinearAttentionChunk, {gather_tokens(tape.out, left.queries), log_sum}, {}, exact.block);
  add_rows(of_left.q, left.queries, gradients.q);
  add_rows(of_left.k, tape.order, gradients.k);
  add_rows(of_left.v, tape.order, gradients.v);
  gradients.features = of_left.features;
  return gradients;
}

LeftPairs left_pairs(const Tensor& q, const Tensor& k, const Tensor& v, const ExactKeys& exact) {
  const int64_t rows = (q.size(2) - exact.keys) / exact.block * exact.block;
  require(rows > 0,
          "windows of {} tokens leave nothing to features beside {} exact keys: give "
          "longer windows or fewer keys",
          q.size(2), exact.keys);
  const Evictions evictions = evict_keys(q, k, exact);
  Tensor log_sum;
  exact_attention(q, k, v, exact, evictions, &log_sum);
  const Tensor queries = rows_from(exact.keys, q.size(2), rows, q.device());
  const Tensor left = gather_rows(k, evictions.order);
  return {gather_rows(q, queries), contiguous_heads(tokens_of(left, 0, rows)),
          gather_rows(log_sum.reshape({q.size(0), q.size(1), q.size(2), 1}), queries)
              .reshape({q.size(0), q.size(1), rows})};
}

}  // namespace dofla
