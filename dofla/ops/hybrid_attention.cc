#include "dofla/ops/hybrid_attention.h"

#include <algorithm>

#include "dofla/ops/feature_loss.h"
#include "dofla/ops/heads.h"
#include "dofla/ops/left_rows.h"
#include "dofla/ops/row_gather.h"

namespace dofla {
namespace {

const HybridAttentionBackend& hybrid_attention_backend(const Tensor& x) {
  return x.device().is_cuda() ? cuda::kHybridAttention : cpu::kHybridAttention;
}

// All heads of a cache, or of contiguous rows, as one.
Tensor as_one_head(const Tensor& rows) {
  const int64_t width = rows.size(rows.rank() - 1);
  return rows.reshape({rows.size(0), 1, rows.count() / (rows.size(0) * width), width});
}

// The keys of the caches and the new ones, one after the other: [B, Hkv, max N, D].
Tensor joined(const Tensor& cache, const Tensor& fresh, const std::vector<HeadCache>& caches) {
  const int64_t heads = fresh.size(1), tokens = fresh.size(2), width = fresh.size(3);
  const int64_t places = cache.size(1);
  const int64_t most = std::ranges::max_element(caches, {}, &HeadCache::keys)->keys;
  Tensor all({fresh.size(0), 1, places + heads * tokens, width}, fresh.dtype(), fresh.device());
  Tensor old = tokens_of(all, 0, places), rest = tokens_of(all, places, all.size(2));
  copy_heads(as_one_head(cache), old);
  copy_heads(as_one_head(contiguous_heads(fresh)), rest);
  Tensor index({1, 1, heads * most}, DType::kI32);
  int32_t* to = index.data<int32_t>();
  for (int64_t h = 0; h < heads; ++h) {
    const HeadCache& own = caches[static_cast<size_t>(h)];
    for (int64_t j = 0; j < most; ++j)
      *to++ = static_cast<int32_t>(j < own.before ? own.first + j
                                   : j < own.keys ? places + h * tokens + j - own.before
                                                  : -1);
  }
  return gather_rows(all, index.to(fresh.device())).reshape({fresh.size(0), heads, most, width});
}

// From attention to the keys that are held, on the tape, to that with features for those that have
// left. `all_k` and `all_v` hold the keys of the cache too.
void add_left(const Tensor& q, const Tensor& all_k, const Tensor& all_v, const Features& features,
              const ExactKeys& exact, const std::vector<HeadCache>& caches,
              LinearAttentionState* state, AttentionTape& tape) {
  if (features.empty() || tape.order.size(2) == 0) return;
  const std::vector<int64_t> first = first_left(caches);
  const Left left = left_of(q, all_k, all_v, tape.order, first);
  std::vector<int64_t> rows;
  rows.reserve(caches.size());
  for (const HeadCache& cache : caches) rows.push_back(cache.times * exact.block);
  AttentionTape alone;
  linear_attention(left.q, left.k, left.v, features, state, kLinearAttentionChunk, &alone,
                   exact.block, rows);
  tape.left_out = alone.out;
  tape.left_log_sum = alone.log_sum;
  hybrid_attention_backend(q).merge(q, tape.left_out, tape.left_log_sum, first, tape.out,
                                    tape.log_sum);
}

// T tokens after `past`. Of every head either no key has left yet, or its cache is full: every
// token that sees the state of keys that have left comes after an eviction.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
              const ExactKeys& exact, HybridAttentionState* state, int64_t past,
              AttentionTape* tape) {
  const std::vector<HeadCache> caches = head_caches(exact, k.size(1), past, q.size(2));
  const Tensor all_k = past == 0 ? k : joined(state->k, k, caches);
  const Tensor all_v = past == 0 ? v : joined(state->v, v, caches);
  const Evictions evictions =
      evict_keys(q, all_k, exact, past == 0 ? Tensor() : state->score, past);
  AttentionTape whole;
  whole.out = exact_attention(q, all_k, all_v, exact, evictions, &whole.log_sum, past);
  whole.order = evictions.order;
  whole.leaves = evictions.leaves;
  whole.kept = evictions.kept;
  add_left(q, all_k, all_v, features, exact, caches, state == nullptr ? nullptr : &state->left,
           whole);
  if (state != nullptr) {
    const auto keep = [&](const Tensor& all, Tensor& cache) {
      cache.assign(
          gather_rows(as_one_head(contiguous_heads(all)), evictions.held).reshape(cache.shape()));
    };
    keep(all_k, state->k);
    keep(all_v, state->v);
    state->score.assign(evictions.score);
  }
  Tensor out = whole.out;
  if (tape != nullptr) *tape = std::move(whole);
  return out;
}

// The gradients of what has left, some keys; what the norms of queries add goes to `grad_q`.
LinearAttentionGradients left_backward(const Tensor& q, const Left& left, const Features& features,
                                       const ExactKeys& exact, const std::vector<int64_t>& first,
                                       const Tensor& grad_out, const AttentionTape& tape,
                                       Tensor& grad_q) {
  Tensor log_sum = tape.left_log_sum.clone();
  hybrid_attention_backend(q).merge_backward(q, tape.left_out, tape.out, tape.log_sum, grad_out,
                                             first, log_sum, grad_q);
  return linear_attention_backward(
      left.q, left.k, left.v, features, gather_tokens(grad_out, left.queries),
      kLinearAttentionChunk, {gather_tokens(tape.out, left.queries), log_sum}, {}, exact.block);
}

// Rows `first` to `end` of a log sum [B, H, T], filled up with kPaddedRest: [B, H, rows].
Tensor padded_rows(const Tensor& log_sum, const std::vector<int64_t>& first, int64_t end,
                   int64_t rows) {
  const int64_t batch = log_sum.size(0), heads = log_sum.size(1), tokens = log_sum.size(2);
  Tensor padding({1});
  padding.data<float>()[0] = kPaddedRest;
  Tensor more({batch, heads, tokens + 1, 1}, DType::kF32, log_sum.device());
  Tensor own = tokens_of(more, 0, tokens), last = tokens_of(more, tokens, tokens + 1);
  copy_heads(log_sum.reshape({batch, heads, tokens, 1}), own);
  copy_heads(padding.to(log_sum.device()).repeat(batch * heads).reshape({batch, heads, 1, 1}),
             last);
  return gather_rows(more,
                     rows_from(first, end, rows, log_sum.device(), static_cast<int32_t>(tokens)))
      .reshape({batch, heads, rows});
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
  const int64_t places = exact.total_keys(key_heads);
  const Shape shape = {batch, places, width};
  HybridAttentionState state = {Tensor::zeros(shape, type, device),
                                Tensor::zeros(shape, type, device),
                                Tensor::zeros({batch, places}, DType::kF32, device),
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
  // adding to it: one at a time, fewer than a block. All heads that have lost keys are equally far.
  const int64_t tokens = q.size(2);
  int64_t steps = 0;
  for (const HeadCache& cache : head_caches(exact, k.size(1), past, tokens))
    if (past > cache.limit) steps = std::min(tokens, cache.first_left());
  if (steps == 0) return attend(q, k, v, features, exact, state, past, nullptr);
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
                 exact, state, past + steps, nullptr),
          steps, tokens);
  return out;
}

Tensor hybrid_attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                             const Features& features, const ExactKeys& exact,
                             HybridAttentionState& state, const Tensor& past) {
  require_hybrid(q, k, v, features);
  require(q.size(2) == 1, "hybrid attention: a step of {} tokens", q.size(2));
  require_shape(past, {q.size(0)}, "hybrid attention: tokens seen");
  require_shape(state.k, {k.size(0), exact.total_keys(k.size(1)), k.size(3)},
                "hybrid attention: cache");
  return hybrid_attention_backend(q).step(q, k, v, features, exact, state, past);
}

LinearAttentionGradients hybrid_attention_backward(const Tensor& q, const Tensor& k,
                                                   const Tensor& v, const Features& features,
                                                   const ExactKeys& exact, const Tensor& grad_out,
                                                   const AttentionTape& tape,
                                                   const GradientBuffers& buffers) {
  require_valid(exact);
  require_hybrid(q, k, v, features);
  require(tape.kept.defined(), "hybrid attention: a backward needs the forward's tape");
  const Evictions evictions = {tape.order, tape.leaves, tape.kept, {}, {}};
  ExactAttentionGradients own =
      exact_attention_backward(q, k, v, exact, evictions, grad_out, tape, buffers);
  LinearAttentionGradients gradients = {own.q, own.k, own.v, zero_gradients(features)};
  if (!tape.left_out.defined()) return gradients;
  const std::vector<int64_t> first = first_left(head_caches(exact, k.size(1), 0, q.size(2)));
  const Left left = left_of(q, k, v, tape.order, first);
  const LinearAttentionGradients of_left =
      left_backward(q, left, features, exact, first, grad_out, tape, gradients.q);
  add_rows(of_left.q, left.queries, gradients.q);
  add_rows(of_left.k, tape.order, gradients.k);
  add_rows(of_left.v, tape.order, gradients.v);
  gradients.features = of_left.features;
  return gradients;
}

AttentionTape with_features(const Tensor& q, const Tensor& k, const Tensor& v,
                            const Features& features, const ExactKeys& exact,
                            const AttentionTape& held) {
  require_hybrid(q, k, v, features);
  require(held.kept.defined() && !held.left_out.defined(),
          "hybrid attention: features are added to the tape of exact keys alone");
  AttentionTape tape = held;
  tape.out = held.out.clone();
  tape.log_sum = held.log_sum.clone();
  add_left(q, k, v, features, exact, head_caches(exact, k.size(1), 0, q.size(2)), nullptr, tape);
  return tape;
}

FeatureGradients hybrid_feature_gradients(const Tensor& q, const Tensor& k, const Tensor& v,
                                          const Features& features, const ExactKeys& exact,
                                          const Tensor& grad_out, const AttentionTape& tape) {
  require_hybrid(q, k, v, features);
  if (!tape.left_out.defined()) return zero_gradients(features);
  const std::vector<int64_t> first = first_left(head_caches(exact, k.size(1), 0, q.size(2)));
  Tensor unused = contiguous_heads(q).clone();  // the gradient of q, which nobody asks for
  return left_backward(q, left_of(q, k, v, tape.order, first), features, exact, first, grad_out,
                       tape, unused)
      .features;
}

LeftPairs left_pairs(const Tensor& q, const Tensor& k, const Tensor& v, const ExactKeys& exact) {
  const std::vector<HeadCache> caches = head_caches(exact, k.size(1), 0, q.size(2));
  const std::vector<int64_t> first = first_left(caches);
  const int64_t whole = q.size(2) - (q.size(2) - exact.keys) % exact.block;  // tokens of blocks
  const int64_t rows = whole - std::ranges::min(first);
  require(whole > exact.keys,
          "windows of {} tokens leave nothing to features beside {} exact keys: give "
          "longer windows or fewer keys",
          q.size(2), exact.keys);
  const Evictions evictions = evict_keys(q, k, exact);
  Tensor log_sum;
  exact_attention(q, k, v, exact, evictions, &log_sum);
  const Tensor left = gather_rows(k, evictions.order);
  return {gather_rows(q, rows_from(first, whole, rows, q.device())),
          contiguous_heads(tokens_of(left, 0, rows)), padded_rows(log_sum, first, whole, rows)};
}

}  // namespace dofla
