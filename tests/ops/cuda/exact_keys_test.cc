// Exact keys on a GPU: the choice against scores in double precision that follow it, attention and
// gradients against the CPU.
#include "dofla/ops/exact_keys.h"

#include <algorithm>

#include "dofla/ops/heads.h"
#include "tests/ops/cuda/attention_on_gpu.h"
#include "tests/ops/cuda/replayed_cache.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

using test::CacheCase;
using test::kPrecisions;
using test::ReplayedCache;

// Keys of no multiple of 16; tokens below, at and above the keys, and around a segment.
std::vector<CacheCase> whole_sequences() {
  const ExactKeys small = {.keys = 37, .sinks = 4, .recent = 8, .block = 16};
  std::vector<CacheCase> all;
  for (const int64_t tokens : {1, 36, 37, 38, 52, 53, 54, 150})
    all.push_back({2, 2, 1, tokens, 0, 64, small});
  all.push_back({2, 1, 8, 200, 0, 64, {.keys = 128, .sinks = 4, .recent = 8, .block = 16}});
  all.push_back({1, 2, 8, 150, 0, 128, {.keys = 64, .sinks = 0, .recent = 8, .block = 32}});
  all.push_back({3, 2, 3, 97, 0, 8, {.keys = 20, .sinks = 0, .recent = 3, .block = 4}});
  all.push_back({1, 1, 2, 300, 0, 64, {.keys = 100, .sinks = 4, .recent = 8, .block = 64}});
  all.push_back({1, 1, 12, 80, 0, 20, small});
  all.push_back({1, 1, 1, 90, 0, 64, {.keys = 9, .sinks = 1, .recent = 2, .block = 1}});
  // As students have them: what a segment sees fits one tile of the gradients, or just not.
  for (const int64_t keys : {64, 72, 80})
    all.push_back({1, 2, 1, 270, 0, 64, {.keys = keys, .sinks = 4, .block = 8}});
  all.push_back({1, 2, 4, 270, 0, 32, {.keys = 200, .sinks = 4, .block = 8}});
  // Keys that fill the shared memory, or in float32 do not fit it.
  all.push_back({1, 1, 8, 700, 0, 64, {.keys = 516, .sinks = 4, .recent = 8, .block = 64}});
  all.push_back({1, 1, 2, 600, 0, 128, {.keys = 516, .sinks = 4, .recent = 8, .block = 16}});
  // Keys that do not fit it in BF16 either, as a head has that looks far back; one that keeps all.
  all.push_back({1, 1, 8, 1400, 0, 64, {.keys = 1336, .sinks = 4, .block = 8}});
  all.push_back({1, 1, 1, 1400, 0, 64, {.keys = 1408, .sinks = 4, .block = 8}});
  // Heads that hold different numbers of keys: one full cache after the other, and one never.
  ExactKeys ragged = {.keys = 256, .sinks = 4, .block = 8};
  ragged.head_keys = {56, 256, 24, 120};
  all.push_back({2, 4, 1, 250, 0, 64, ragged});
  all.push_back({1, 4, 8, 150, 0, 64, ragged});
  all.push_back({1, 4, 3, 130, 0, 20, ragged});
  return all;
}

// The same and sequences that go on.
std::vector<CacheCase> all_sequences() {
  std::vector<CacheCase> all = whole_sequences();
  const ExactKeys small = {.keys = 37, .sinks = 4, .recent = 8, .block = 16};
  for (const int64_t past : {10, 36, 37})
    for (const int64_t tokens : {1, 17, 60}) all.push_back({2, 2, 2, tokens, past, 64, small});
  // One cache is full, one has evicted keys before and is full again, one is not.
  ExactKeys ragged = {.keys = 120, .sinks = 4, .block = 8};
  ragged.head_keys = {56, 24, 120};
  for (const int64_t tokens : {1, 9, 100}) all.push_back({2, 3, 2, tokens, 56, 64, ragged});
  return all;
}

class CudaExactKeys : public test::AttentionOnGpu {
 protected:
  struct Inputs {
    Tensor q, k, v, score;  // in float32 on the CPU, of values that the type has
  };
  static Inputs inputs_of(const CacheCase& c, DType dtype) {
    Random random(static_cast<uint64_t>(c.tokens + c.past));
    const auto rounded = [&](const Shape& shape) {
      return test::normal_tensor(shape, random).to(dtype).to(DType::kF32);
    };
    const std::vector<HeadCache> caches = head_caches(c.exact, c.key_heads, c.past, c.tokens);
    const int64_t keys = std::ranges::max_element(caches, {}, &HeadCache::keys)->keys;
    Inputs x = {rounded({c.batch, c.key_heads * c.group, c.tokens, c.width}),
                rounded({c.batch, c.key_heads, keys, c.width}),
                rounded({c.batch, c.key_heads, keys, c.width}),
                {}};
    if (c.past > 0)
      x.score = test::normal_tensor({c.batch, c.exact.total_keys(c.key_heads)}, random);
    for (int64_t i = 0; i < x.score.count(); ++i)
      x.score.data<float>()[i] = std::abs(x.score.data<float>()[i]);
    return x;
  }
  static std::string name_of(const CacheCase& c, DType dtype) {
    return fmt::format("{} tokens after {}, {} × {} heads of {}, {} keys, {}", c.tokens, c.past,
                       c.key_heads, c.group, c.width, c.exact.keys, name(dtype));
  }
  static Evictions to(const Device& device, const Evictions& e) {
    return {e.order.to(device), e.leaves.to(device), e.kept.to(device), e.held.to(device),
            e.score.to(device)};
  }

  void expect_that_the_least_leave(const CacheCase& c, const Inputs& x, DType dtype) {
    const std::string what = name_of(c, dtype);
    const Evictions found =
        to(Device(), evict_keys(there(x.q, dtype), there(x.k, dtype), c.exact,
                                x.score.defined() ? x.score.to(gpu) : Tensor(), c.past));
    const std::vector<HeadCache> caches = head_caches(c.exact, c.key_heads, c.past, c.tokens);
    const Evictions like = new_evictions(caches, c.batch, c.exact.block, {});
    ASSERT_EQ(found.order.shape(), like.order.shape()) << what;
    ASSERT_EQ(found.kept.shape(), like.kept.shape()) << what;
    ASSERT_EQ(found.held.shape(), like.held.shape()) << what;
    for (int64_t head = 0; head < c.batch * c.key_heads; ++head) {
      expect_that_the_least_leave(c, caches[static_cast<size_t>(head % c.key_heads)], x, found,
                                  head, what + fmt::format(", head {}", head));
      if (HasFatalFailure()) return;
    }
  }
  static void expect_that_the_least_leave(const CacheCase& c, const HeadCache& own, const Inputs& x,
                                          const Evictions& found, int64_t head,
                                          const std::string& what) {
    const double tolerance = kPrecisions[0].relative * static_cast<double>(c.group) /
                             (1 - c.exact.decay);  // the scores are at most so large
    const int64_t block = c.exact.block, row = x.k.size(2), stride = c.tokens * c.width;
    const int64_t b = head / c.key_heads, h = head % c.key_heads;
    const int64_t stay = own.limit - block, place = b * found.score.size(1) + own.first;
    const int32_t* order = found.order.data<int32_t>() + head * found.order.size(2);
    const int32_t* kept = found.kept.data<int32_t>() + b * found.kept.size(1) + own.first_kept;
    const int32_t* leaves = found.leaves.data<int32_t>() + head * row;
    ReplayedCache cache(c, own, x.k.data<float>() + head * row * c.width,
                        c.past > 0 ? x.score.data<float>() + place : nullptr);
    int64_t n = 0;
    for (int64_t t = 0; t < c.tokens; ++t) {
      if (cache.full()) {
        ASSERT_LE(cache.leave(order + n * block), tolerance) << what << ", token " << t;
        ASSERT_EQ(static_cast<int64_t>(cache.held().size()), stay) << what;
        for (int64_t i = 0; i < block; ++i) ASSERT_EQ(leaves[order[n * block + i]], n) << what;
        if (n * block % kTokensTogether == 0) {
          ASSERT_TRUE(std::equal(cache.held().begin(), cache.held().end(),
                                 kept + n * block / kTokensTogether * stay))
              << what << ", token " << t;
        }
        ++n;
      }
      cache.come(x.q.data<float>() + head * c.group * stride + t * c.width, stride);
    }
    ASSERT_EQ(n, own.times) << what;
    for (int64_t i = n * block; i < found.order.size(2); ++i) ASSERT_EQ(order[i], -1) << what;
    const auto count = static_cast<int64_t>(cache.held().size());
    for (int64_t i = 0; i < own.limit; ++i) {
      const int32_t found_row = found.held.data<int32_t>()[place + i];
      const float score = found.score.data<float>()[place + i];
      const auto at = static_cast<size_t>(i);
      ASSERT_EQ(found_row, i < count ? h * row + cache.held()[at] : -1) << what;
      ASSERT_NEAR(score, i < count ? cache.score()[at] : 0, tolerance) << what;
      if (i < count) {
        ASSERT_EQ(leaves[cache.held()[at]], kStays) << what;
      }
    }
  }
};

// Among scores that are closer than float32 resolves, either key may leave.
TEST_F(CudaExactKeys, TheLeastAttendedLeave) {
  for (const CacheCase& c : all_sequences())
    for (const auto& [dtype, relative] : kPrecisions)
      expect_that_the_least_leave(c, inputs_of(c, dtype), dtype);
}

// A query gives nearly all to one key, and to others less than float32 can tell, until it leaves.
TEST_F(CudaExactKeys, TheLeastAttendedLeaveWhereOneKeyHasAll) {
  const ExactKeys small = {.keys = 40, .sinks = 4, .recent = 8, .block = 8};
  for (const CacheCase& c :
       {CacheCase{2, 2, 1, 200, 0, 64, small}, CacheCase{1, 2, 8, 90, 0, 64, small},
        CacheCase{1, 1, 2, 60, 40, 64, small}})
    for (const auto& [dtype, relative] : kPrecisions) {
      Inputs x = inputs_of(c, dtype);
      for (int64_t i = 0; i < x.q.count(); ++i) x.q.data<float>()[i] *= 64;
      expect_that_the_least_leave(c, x, dtype);
    }
}

TEST_F(CudaExactKeys, OfEqualScoresTheOlderLeave) {
  const CacheCase c = {1, 2, 1, 1, 37, 64, {.keys = 37, .sinks = 4, .recent = 8, .block = 16}};
  Inputs x = inputs_of(c, DType::kF32);
  std::fill_n(x.score.data<float>(), x.score.count(), 0.5f);
  const Evictions found =
      to(Device(), evict_keys(x.q.to(gpu), x.k.to(gpu), c.exact, x.score.to(gpu), c.past));
  for (int64_t i = 0; i < found.order.count(); ++i)
    EXPECT_EQ(found.order.data<int32_t>()[i], 4 + i % 16);
}

TEST_F(CudaExactKeys, Attention) {
  for (const CacheCase& c : all_sequences())
    for (const auto& [dtype, relative] : kPrecisions) {
      const std::string what = name_of(c, dtype);
      const Inputs x = inputs_of(c, dtype);
      const Evictions evictions = evict_keys(x.q, x.k, c.exact, x.score, c.past);
      Tensor log_sum, log_sum_there;
      const Tensor out = exact_attention(x.q, x.k, x.v, c.exact, evictions, &log_sum, c.past);
      const Tensor found = exact_attention(there(x.q, dtype), there(x.k, dtype), there(x.v, dtype),
                                           c.exact, to(gpu, evictions), &log_sum_there, c.past);
      expect_close(found, out, relative, what);
      expect_close(log_sum_there, log_sum, kPrecisions[0].relative, what + ", log sums");
    }
}

// Of the keys alone, and of a part of an attention to more: other outputs, larger denominators.
TEST_F(CudaExactKeys, Gradients) {
  for (const CacheCase& c : whole_sequences())
    for (const auto& [dtype, relative] : kPrecisions)
      for (const bool part : {false, true}) {
        const std::string what = name_of(c, dtype) + (part ? ", part" : "");
        const Inputs x = inputs_of(c, dtype);
        const Evictions evictions = evict_keys(x.q, x.k, c.exact);
        Random random(3);
        const Shape shape = {c.batch, c.tokens, c.key_heads * c.group, c.width};
        const Tensor grad = test::normal_tensor(shape, random).to(dtype).to(DType::kF32);
        AttentionTape tape;
        tape.out = exact_attention(x.q, x.k, x.v, c.exact, evictions, &tape.log_sum);
        if (part) {
          tape.out = test::normal_tensor(shape, random);
          for (int64_t i = 0; i < tape.log_sum.count(); ++i) tape.log_sum.data<float>()[i] += 0.5f;
        }
        tape.out = tape.out.to(dtype).to(DType::kF32);
        const auto cpu = exact_attention_backward(x.q, x.k, x.v, c.exact, evictions, grad, tape);
        AttentionTape tape_there;
        tape_there.out = there(tape.out, dtype);
        tape_there.log_sum = tape.log_sum.to(gpu);
        const auto found =
            exact_attention_backward(there(x.q, dtype), there(x.k, dtype), there(x.v, dtype),
                                     c.exact, to(gpu, evictions), there(grad, dtype), tape_there);
        const double sums = relative * (1 + std::sqrt(static_cast<double>(c.tokens)) / 8);
        expect_close(found.v, cpu.v, sums, what + ", grad_v");
        if (c.tokens == 1 && !part) continue;  // the output is v itself: the others are rounding
        expect_close(found.q, cpu.q, sums, what + ", grad_q");
        expect_close(found.k, cpu.k, sums, what + ", grad_k");
      }
}

// Heads in the rows of a projection, and gradients that go back there: the same bits.
TEST_F(CudaExactKeys, Views) {
  constexpr int64_t kBatch = 2, kKeyHeads = 2, kGroup = 2, kTokens = 100;
  const ExactKeys exact = {.keys = 37, .sinks = 4, .recent = 8, .block = 16};
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t width : {20, 64}) {
      Random random(9);
      const auto normal = [&](const Shape& shape) {
        return test::normal_tensor(shape, random).to(dtype).to(gpu);
      };
      const int64_t columns = 8 + (kGroup + 2) * kKeyHeads * width;
      const auto part = [&](const Tensor& rows, int64_t first, int64_t heads) {
        return view_heads(rows, {8 + first * width, width}, kBatch, heads, width);
      };
      const Tensor rows = normal({kBatch * kTokens, columns});
      const Tensor q = part(rows, 0, kGroup * kKeyHeads),
                   k = part(rows, kGroup * kKeyHeads, kKeyHeads),
                   v = part(rows, (kGroup + 1) * kKeyHeads, kKeyHeads);
      const Tensor own_q = contiguous_heads(q), own_k = contiguous_heads(k),
                   own_v = contiguous_heads(v);
      const Tensor grad = normal({kBatch, kTokens, kGroup * kKeyHeads, width});
      const auto expect_same = [&](const Tensor& x, const Tensor& y, const char* what) {
        EXPECT_TRUE(test::same_bits(here(contiguous_heads(x)), here(y)))
            << what << ", " << width << " wide in " << name(dtype);
      };
      const Evictions evictions = evict_keys(q, k, exact);
      const Evictions expected = evict_keys(own_q, own_k, exact);
      EXPECT_TRUE(test::same_bits(evictions.order.to(Device()), expected.order.to(Device())));
      AttentionTape tape, own_tape;
      tape.out = exact_attention(q, k, v, exact, evictions, &tape.log_sum);
      own_tape.out = exact_attention(own_q, own_k, own_v, exact, evictions, &own_tape.log_sum);
      EXPECT_TRUE(test::same_bits(here(tape.out), here(own_tape.out)));
      const Tensor to = normal({kBatch * kTokens, columns});
      const GradientBuffers buffers = {part(to, 0, kGroup * kKeyHeads),
                                       part(to, kGroup * kKeyHeads, kKeyHeads),
                                       part(to, (kGroup + 1) * kKeyHeads, kKeyHeads)};
      exact_attention_backward(q, k, v, exact, evictions, grad, tape, buffers);
      const auto own =
          exact_attention_backward(own_q, own_k, own_v, exact, evictions, grad, own_tape);
      expect_same(buffers.q, own.q, "grad_q");
      expect_same(buffers.k, own.k, "grad_k");
      expect_same(buffers.v, own.v, "grad_v");
    }
}

}  // namespace
}  // namespace dofla
