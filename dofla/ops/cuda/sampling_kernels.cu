// Draws a token from every row of logits, a block a row. Weights are summed as integers, which
// gives the same sum in any order. Whatever is asked for, the k likeliest tokens, the fewest that
// hold some probability, or the one that a random number meets, is one question: where does the sum
// over the likeliest tokens reach a target? It is answered by halving the range of weights twice a
// pass. Few tokens are likely: these are put into a list once, and the passes are over it.
#include "dofla/ops/cuda/sampling_kernels.h"

namespace dofla::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32, kListed = 4096;
// Sums over the tokens above these weights tell which of them to list.
constexpr int kBounds = 3;
__device__ constexpr float kBound[kBounds] = {1e-2f, 1e-3f, 1e-4f};

// The sums of x over the block, in every thread.
template <int kCount>
__device__ void block_sums(uint64_t (&x)[kCount]) {
  __shared__ uint64_t parts[kWarps][kCount];
  for (int i = 0; i < kCount; ++i)
    for (int step = 16; step > 0; step /= 2) x[i] += __shfl_xor_sync(~0u, x[i], step);
  __syncthreads();  // earlier sums may still be read
  if (threadIdx.x % 32 == 0)
    for (int i = 0; i < kCount; ++i) parts[threadIdx.x / 32][i] = x[i];
  __syncthreads();
  for (int i = 0; i < kCount; ++i) {
    x[i] = 0;
    for (int warp = 0; warp < kWarps; ++warp) x[i] += parts[warp][i];
  }
}

__device__ uint64_t block_max(uint64_t x) {
  __shared__ uint64_t parts[kWarps];
  for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(~0u, x, step));
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) x = max(x, parts[warp]);
  return x;
}

// Bits that are ordered as the floats are.
__device__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);  // −0 is 0
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
__device__ float from_ordered(uint32_t bits) {
  return __uint_as_float(bits >> 31 != 0 ? bits & 0x7fffffffu : ~bits);
}

// A weight is at most 1; 2^40 of it are less than 2^61 for every vocabulary.
__device__ uint64_t as_integer(uint32_t bits) {
  return __float2ull_rn(__uint_as_float(bits) * 0x1p40f);
}

// The tokens of a row by weight: those of a list where there is one, else all.
struct Tokens {
  const float* logits;
  int64_t count;
  float top, factor;
  const uint64_t* list;
  int listed;  // -1: there is no list

  __device__ uint32_t weight(int64_t id) const {
    return __float_as_uint(expf((logits[id] - top) * factor));
  }
  template <class Visit>
  __device__ void each(const Visit& visit) const {
    if (listed >= 0) {
      for (int i = threadIdx.x; i < listed; i += kThreads)
        visit(static_cast<uint32_t>(list[i] >> 32), static_cast<uint32_t>(list[i]));
      return;
    }
    for (int64_t id = threadIdx.x; id < count; id += kThreads)
      if (const uint32_t bits = weight(id)) visit(bits, static_cast<uint32_t>(id));
  }
};

// The tokens of larger weight, and of this weight those up to this id.
struct Likeliest {
  uint32_t bits = 0, last = ~0u;

  __device__ bool hold(uint32_t weight, uint32_t id) const {
    return weight > bits || (weight == bits && id <= last);
  }
};

// Of the tokens that `among` holds the fewest likeliest whose sum reaches `target`, at least 1 and
// at most that of all; `sum` becomes theirs. A token counts its weight, or 1.
__device__ Likeliest reach(const Tokens& tokens, const Likeliest& among, bool by_count,
                           uint64_t target, uint64_t& sum) {
  const auto worth = [&](uint32_t bits) { return by_count ? 1 : as_integer(bits); };
  // The sum over weights of at least `low` reaches the target, that of at least `high` does not.
  uint32_t low = 0, high = __float_as_uint(1.0f) + 1;
  uint64_t above = 0;
  while (high - low > 1) {
    const uint32_t quarter = max((high - low) / 4, 1u);
    uint32_t at[3];
    for (int i = 0; i < 3; ++i) at[i] = min(low + (i + 1) * quarter, high);
    uint64_t sums[3] = {};
    tokens.each([&](uint32_t bits, uint32_t id) {
      if (bits < at[0] || !among.hold(bits, id)) return;
      const uint64_t own = worth(bits);
      for (int i = 0; i < 3; ++i) sums[i] += bits >= at[i] ? own : 0;
    });
    block_sums(sums);
    for (int i = 2; i >= 0; --i)
      if (at[i] < high && sums[i] < target) high = at[i], above = sums[i];
    for (int i = 0; i < 3; ++i)
      if (at[i] < high && sums[i] >= target) low = at[i];
  }
  // Of equal weights the lower ids are the likelier ones.
  const uint64_t own = worth(low);
  const uint64_t wanted = own > 0 ? (target - above + own - 1) / own : 1;
  sum = above + wanted * own;
  uint64_t first = 0;  // of them, as a maximum
  tokens.each([&](uint32_t bits, uint32_t id) {
    if (bits == low && among.hold(bits, id)) first = max(first, uint64_t{~id} + 1);
  });
  uint32_t begin = ~static_cast<uint32_t>(block_max(first) - 1);
  uint32_t end = wanted == 1 ? begin : static_cast<uint32_t>(tokens.count) - 1;
  while (begin < end) {
    const uint32_t middle = begin + (end - begin) / 2;
    uint64_t found[1] = {};
    tokens.each([&](uint32_t bits, uint32_t id) {
      found[0] += bits == low && id <= middle && among.hold(bits, id) ? 1 : 0;
    });
    block_sums(found);
    if (found[0] >= wanted)
      end = middle;
    else
      begin = middle + 1;
  }
  return {low, begin};
}

// In the order of their ids, the first token at which the sum of weights exceeds `left`.
__device__ int64_t pass(const Tokens& tokens, uint64_t left) {
  uint32_t begin = 0, end = static_cast<uint32_t>(tokens.count) - 1;
  while (begin < end) {
    const uint32_t middle = begin + (end - begin) / 2;
    uint64_t sums[1] = {};
    tokens.each(
        [&](uint32_t bits, uint32_t id) { sums[0] += id <= middle ? as_integer(bits) : 0; });
    block_sums(sums);
    if (sums[0] > left)
      end = middle;
    else
      begin = middle + 1;
  }
  return begin;
}

// Lists the tokens above the largest bound over which there are at least `fewest` tokens that hold
// `target`; leaves it where these are too many, or no bound is low enough.
__device__ void list_likely(Tokens& tokens, uint64_t fewest, uint64_t target, uint64_t* list) {
  __shared__ int filled;
  uint64_t found[2 * kBounds] = {};  // sums, then counts
  tokens.each([&](uint32_t bits, uint32_t) {
    for (int i = 0; i < kBounds; ++i)
      if (__uint_as_float(bits) >= kBound[i]) {
        found[i] += as_integer(bits);
        ++found[kBounds + i];
      }
  });
  block_sums(found);
  int bound = 0;
  while (bound < kBounds && (found[bound] < target || found[kBounds + bound] < fewest)) ++bound;
  if (bound == kBounds || found[kBounds + bound] > kListed) return;
  if (threadIdx.x == 0) filled = 0;
  __syncthreads();
  tokens.each([&](uint32_t bits, uint32_t id) {
    if (__uint_as_float(bits) >= kBound[bound])
      list[atomicAdd(&filled, 1)] = uint64_t{bits} << 32 | id;
  });
  __syncthreads();
  tokens.list = list;
  tokens.listed = filled;
}

__global__ void __launch_bounds__(kThreads)
    draw_row(const float* __restrict__ logits, const double* __restrict__ draws, int64_t count,
             int64_t* __restrict__ ids) {
  __shared__ uint64_t list[kListed];
  Tokens tokens = {logits + blockIdx.x * count, count, 0, 0, nullptr, -1};
  const double temperature = draws[4 * blockIdx.x], top_p = draws[4 * blockIdx.x + 2];
  const auto top_k = static_cast<int64_t>(draws[4 * blockIdx.x + 1]);
  const double uniform = draws[4 * blockIdx.x + 3];
  const auto answer = [&](int64_t id) {
    if (threadIdx.x == 0) ids[blockIdx.x] = id;
  };

  uint64_t best = 0;
  bool broken = false;
  for (int64_t id = threadIdx.x; id < count; id += kThreads) {
    const float logit = tokens.logits[id];
    broken |= !(logit < INFINITY);
    best = max(best, uint64_t{ordered(logit)} << 32 | (~0u - static_cast<uint32_t>(id)));
  }
  best = block_max(best);
  tokens.top = from_ordered(static_cast<uint32_t>(best >> 32));
  if (__syncthreads_or(broken) || tokens.top == -INFINITY) return answer(-1);
  if (temperature == 0) return answer(~0u - static_cast<uint32_t>(best));

  tokens.factor = static_cast<float>(1 / max(temperature, 1e-30));
  uint64_t all[2] = {};  // sum and count of the weights that are not 0
  tokens.each([&](uint32_t bits, uint32_t) {
    all[0] += as_integer(bits);
    ++all[1];
  });
  block_sums(all);
  const auto times = [](double share, uint64_t sum) {
    return static_cast<uint64_t>(share * static_cast<double>(sum));
  };
  const auto enough = [&](uint64_t sum) {
    return max(min(static_cast<uint64_t>(ceil(top_p * static_cast<double>(sum))), sum),
               uint64_t{1});
  };
  uint64_t sum = all[0], unused = 0;
  const bool some = top_k > 0 && top_k < count;
  if (!some && top_p >= 1) return answer(pass(tokens, min(times(uniform, sum), sum - 1)));
  Likeliest kept;
  if (some) {
    const uint64_t wanted = min(static_cast<uint64_t>(top_k), all[1]);
    list_likely(tokens, wanted, 0, list);
    kept = reach(tokens, kept, true, wanted, unused);
    uint64_t held[1] = {};
    tokens.each(
        [&](uint32_t bits, uint32_t id) { held[0] += kept.hold(bits, id) ? as_integer(bits) : 0; });
    block_sums(held);
    sum = held[0];
  } else {
    list_likely(tokens, 1, enough(sum), list);
  }
  if (top_p < 1) kept = reach(tokens, kept, false, enough(sum), sum);
  // From the least likely on, the sum passes the random number where the rest, from the likeliest
  // on, reaches what is left of it.
  answer(reach(tokens, kept, false, sum - min(times(uniform, sum), sum - 1), unused).last);
}

}  // namespace

cudaError_t launch_draw_tokens(const float* logits, const double* draws, int64_t rows,
                               int64_t vocabulary, int64_t* ids, cudaStream_t stream) {
  draw_row<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(logits, draws, vocabulary, ids);
  return cudaGetLastError();
}

}  // namespace dofla::cuda
