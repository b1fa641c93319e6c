// Exact keys and features in one softmax: the GPU against the CPU.
#include "dofla/ops/hybrid_attention.h"

#include <algorithm>

#include "dofla/ops/heads.h"
#include "tests/ops/cuda/attention_on_gpu.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

using reference::AttentionCase;
using test::kPrecisions;

constexpr ExactKeys kCache = {.keys = 37, .sinks = 4, .recent = 8, .block = 16};

// The same in every head, and where there are several, every second one with a block more.
std::vector<ExactKeys> kinds_of(const AttentionCase& c, KeyPolicy policy) {
  ExactKeys even = kCache;
  even.policy = policy;
  if (c.key_heads == 1) return {even};
  ExactKeys ragged = even;
  for (int64_t h = 0; h < c.key_heads; ++h)
    ragged.head_keys.push_back(even.keys + h % 2 * even.block);
  ragged.keys += even.block;
  return {even, ragged};
}

// A state a query head, of one round of features and of several; a state for eight query heads, and
// for one; every width that has a kernel of its own.
std::vector<AttentionCase> hybrid_cases(int64_t tokens) {
  std::vector<AttentionCase> all;
  all.push_back(reference::random_case(
      {.batch = 3, .key_heads = 2, .tokens = tokens, .width = 64, .counts = {1, 16, 140, 64}}));
  all.push_back(reference::random_case(
      {.batch = 3, .tokens = tokens, .width = 64, .counts = {16, 70}, .group = 8}));
  all.push_back(reference::random_case(
      {.batch = 3, .tokens = tokens, .width = 128, .counts = {33}, .group = 2}));
  all.push_back(reference::random_case(
      {.batch = 3, .key_heads = 2, .tokens = tokens, .width = 8, .counts = {5, 17}}));
  all.push_back(reference::random_case(
      {.batch = 3, .tokens = tokens, .width = 20, .counts = {5, 64}, .group = 1}));
  return all;
}

class CudaHybridAttention : public test::AttentionOnGpu {
 protected:
  static Tensor tokens_of(const Tensor& heads, int64_t begin, int64_t end) {
    return contiguous_heads(heads.view({heads.size(0), heads.size(1), end - begin, heads.size(3)},
                                       begin * heads.step(2),
                                       {heads.step(0), heads.step(1), heads.step(2), 1}));
  }
  static Tensor integers(const std::vector<int64_t>& values) {
    Tensor out({static_cast<int64_t>(values.size())}, DType::kI64);
    std::copy(values.begin(), values.end(), out.data<int64_t>());
    return out;
  }
  HybridAttentionState there(const HybridAttentionState& state, DType dtype) const {
    HybridAttentionState copy = {
        state.k.to(dtype).to(gpu), state.v.to(dtype).to(gpu), state.score.to(gpu), {}};
    if (state.left.a.defined())
      copy.left = {state.left.log_max.to(gpu), state.left.a.to(gpu), state.left.b.to(gpu)};
    return copy;
  }
  using AttentionOnGpu::there;

  // The keys that are held after so many tokens: the rest of a cache may be anything.
  static void expect_same_held(const Tensor& found, const Tensor& expected, const ExactKeys& exact,
                               int64_t key_heads, const std::vector<int64_t>& tokens,
                               double relative, const std::string& what) {
    const int64_t places = expected.size(1);
    const Tensor all = here(found);
    const auto rows = [places](const Tensor& x) {
      return x.reshape({x.size(0) * places, x.count() / (x.size(0) * places)});
    };
    for (size_t b = 0; b < tokens.size(); ++b) {
      const std::vector<HeadCache> caches = head_caches(exact, key_heads, tokens[b], 0);
      for (size_t h = 0; h < caches.size(); ++h) {
        const int64_t first = static_cast<int64_t>(b) * places + caches[h].first;
        const auto part = [&](const Tensor& x) {
          return rows(x).slice(first, first + caches[h].before).clone();
        };
        expect_close(part(all), part(expected), relative,
                     fmt::format("{}, sequence {}, head {}", what, b, h));
      }
    }
  }
  void expect_steps(const AttentionCase& c, const Features& features, const ExactKeys& exact,
                    DType dtype, double relative);
};

// Keys that leave in order: nothing hangs on the rounding of scores.
TEST_F(CudaHybridAttention, WholeSequences) {
  for (const int64_t tokens : {36, 38, 53, 150})
    for (const AttentionCase& c : hybrid_cases(tokens))
      for (const ExactKeys& exact : kinds_of(c, KeyPolicy::kRecent))
        for (const auto& [dtype, relative] : kPrecisions) {
          const std::string what =
              name_of(c, dtype) + (exact.head_keys.empty() ? "" : ", ragged keys");
          const Inputs x = rounded_inputs(c, dtype);
          const Features features = c.features(), on_gpu = features.to(gpu);
          const Tensor q = there(x.q, dtype), k = there(x.k, dtype), v = there(x.v, dtype);
          AttentionTape tape, tape_there;
          const Tensor out = hybrid_attention(x.q, x.k, x.v, features, exact, nullptr, 0, &tape);
          expect_close(hybrid_attention(q, k, v, on_gpu, exact, nullptr, 0, &tape_there), out,
                       2 * relative, what);
          expect_close(tape_there.log_sum, tape.log_sum, relative, what + ", log sums");
          Random random(3);
          const Tensor grad = test::normal_tensor(out.shape(), random).to(dtype).to(DType::kF32);
          const auto cpu = hybrid_attention_backward(x.q, x.k, x.v, features, exact, grad, tape);
          const auto found =
              hybrid_attention_backward(q, k, v, on_gpu, exact, there(grad, dtype), tape_there);
          const double sums = relative * (1 + std::sqrt(static_cast<double>(c.tokens)) / 4);
          expect_close(found.q, cpu.q, 2 * sums, what + ", grad_q");
          expect_close(found.k, cpu.k, 2 * sums, what + ", grad_k");
          expect_close(found.v, cpu.v, 2 * sums, what + ", grad_v");
          if (tokens <= kCache.keys) continue;  // nothing has left
          // A row's part is a difference of g·v and g·out, both of them rounded.
          const double features_sums = 4 * sums;
          expect_close(found.features.z, cpu.features.z, features_sums, what + ", gradient of z");
          expect_close(found.features.log_alpha, cpu.features.log_alpha, features_sums,
                       what + ", gradient of log α");
          if (c.untied())
            expect_close(found.features.u, cpu.features.u, features_sums, what + ", gradient of u");
        }
}

// Sequences that have seen different numbers of tokens: a cache that is empty, one that is about to
// be full, and one that has been full. What is in the state does not matter.
void CudaHybridAttention::expect_steps(const AttentionCase& c, const Features& features,
                                       const ExactKeys& exact, DType dtype, double relative) {
  const std::string what = name_of(c, dtype) + (features.empty() ? ", no features" : "");
  const Inputs x = rounded_inputs(c, dtype);
  const Features on_gpu = features.empty() ? features : features.to(gpu);
  Random random(4);
  const auto rounded = [&](const Shape& shape) {
    return test::normal_tensor(shape, random).to(dtype).to(DType::kF32);
  };
  HybridAttentionState state = new_hybrid_attention_state(c.batch, c.key_heads, c.width,
                                                          DType::kF32, Device(), features, exact);
  state.k = rounded(state.k.shape());
  state.v = rounded(state.v.shape());
  if (exact.policy == KeyPolicy::kAttended)
    for (int64_t i = 0; i < state.score.count(); ++i)
      state.score.data<float>()[i] = std::abs(static_cast<float>(random.normal()));
  if (!features.empty()) {
    state.left.log_max = test::normal_tensor(state.left.log_max.shape(), random);
    state.left.b = test::normal_tensor(state.left.b.shape(), random);
    std::fill_n(state.left.a.data<float>(), state.left.a.count(), 1.5f);
  }
  HybridAttentionState gpu_state = there(state, dtype);
  std::vector<int64_t> past = {0, exact.keys - 3, exact.keys + exact.block + 5};
  for (int64_t t = 0; t < c.tokens; ++t) {
    const auto at = [&](const Tensor& heads) { return tokens_of(heads, t, t + 1); };
    const Tensor seen = integers(past);
    const Tensor out =
        hybrid_attention_step(at(x.q), at(x.k), at(x.v), features, exact, state, seen);
    const Tensor found =
        hybrid_attention_step(there(at(x.q), dtype), there(at(x.k), dtype), there(at(x.v), dtype),
                              on_gpu, exact, gpu_state, seen.to(gpu));
    expect_close(found, out, relative, fmt::format("{}, step {}", what, t));
    if (HasFailure()) return;
    for (int64_t& count : past) ++count;
  }
  const auto expect_held = [&](const Tensor& found, const Tensor& expected, double off,
                               const char* which) {
    expect_same_held(found, expected, exact, c.key_heads, past, off, what + which);
  };
  expect_held(gpu_state.k, state.k, 0, ", keys");
  expect_held(gpu_state.v, state.v, 0, ", values");
  if (exact.policy == KeyPolicy::kAttended)
    expect_held(gpu_state.score, state.score, kPrecisions[0].relative, ", scores");
  if (features.empty()) return;
  expect_close(gpu_state.left.log_max, state.left.log_max, kPrecisions[0].relative, what);
  expect_close(gpu_state.left.a, state.left.a, 4 * kPrecisions[0].relative, what + ", a");
  expect_close(gpu_state.left.b, state.left.b, 4 * kPrecisions[0].relative, what + ", b");
}

TEST_F(CudaHybridAttention, Steps) {
  for (const KeyPolicy policy : {KeyPolicy::kAttended, KeyPolicy::kRecent})
    for (const AttentionCase& c : hybrid_cases(60))
      for (const ExactKeys& exact : kinds_of(c, policy))
        for (const auto& [dtype, relative] : kPrecisions) {
          expect_steps(c, c.features(), exact, dtype, relative);
          expect_steps(c, {}, exact, dtype, relative);
        }
}

// A prompt and then token by token, in pieces that end within a segment.
TEST_F(CudaHybridAttention, GoesOnFromAPrompt) {
  for (const AttentionCase& c : hybrid_cases(100))
    for (const ExactKeys& exact : kinds_of(c, KeyPolicy::kRecent))
      for (const auto& [dtype, relative] : kPrecisions) {
        const Inputs x = rounded_inputs(c, dtype);
        const Features features = c.features(), on_gpu = features.to(gpu);
        const Tensor out = hybrid_attention(x.q, x.k, x.v, features, exact);
        HybridAttentionState state =
            new_hybrid_attention_state(c.batch, c.key_heads, c.width, dtype, gpu, on_gpu, exact);
        for (const auto& [begin, end] :
             std::vector<std::pair<int64_t, int64_t>>{{0, 20}, {20, 45}, {45, 46}, {46, 100}}) {
          const auto part = [&, first = begin, last = end](const Tensor& heads) {
            return there(tokens_of(heads, first, last), dtype);
          };
          const Tensor found =
              hybrid_attention(part(x.q), part(x.k), part(x.v), on_gpu, exact, &state, begin);
          const int64_t row = c.heads * c.width;
          const Tensor expected = tokens_of(out.reshape({c.batch, 1, c.tokens, row}), begin, end)
                                      .reshape({c.batch, end - begin, c.heads, c.width});
          expect_close(found, expected, 2 * relative,
                       fmt::format("{}, tokens {} to {}", name_of(c, dtype), begin, end));
        }
      }
}

}  // namespace
}  // namespace dofla
