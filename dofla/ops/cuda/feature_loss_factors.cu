// Before the pairs: the plan of heads and items, inputs in bf16 parts, and for every query and key
// its log features, which become a peak and factors 2^(log φ̃ − peak + kLift).
#include "dofla/ops/cuda/feature_loss_plan.h"
#include "dofla/ops/cuda/launch.cuh"
#include "dofla/ops/cuda/swizzled_tile.cuh"

namespace dofla::cuda::feature_pairs {
namespace {

constexpr int kFactorThreads = 128;
constexpr int kTilesPerBlock = 4;  // so that a block's z is loaded once for 256 tokens
constexpr int kSplitThreads = 256;
constexpr float kInfinity = __builtin_huge_valf();

struct Counts {
  int count[kMostHeads];
};

// Heads of many features first: the long items start early and the short ones fill the gaps.
__global__ void plan_kernel(Plan plan, Counts counts, Workspace work) {
  const int head = threadIdx.x;
  if (head < 2) work.next_item[head] = 0;
  if (head >= plan.heads) return;
  const auto make = [&](int h) {
    const int count = counts.count[h], padded = (count + 15) / 16 * 16;
    return HeadPlan{count, 0, padded, 0, count > kTile ? plan.wide_window : kTile, 0};
  };
  HeadPlan mine = make(head);
  const bool wide = mine.count > kTile;
  mine.first_item = wide ? plan.narrow_items : 0;
  for (int h = 0; h < plan.heads; ++h) {
    const HeadPlan other = make(h);
    if (h < head) {
      mine.first += other.count;
      mine.padded_first += other.padded;
    }
    const bool before = other.count > mine.count || (other.count == mine.count && h < head);
    if (before && (other.count > kTile) == wide)
      mine.first_item += other.windows() * plan.batch * plan.pairs;
  }
  work.heads[head] = mine;
}

// One block a padded feature.
__global__ void split_features_kernel(Plan plan, Workspace work, const float* z,
                                      const float* log_alpha) {
  const int row = blockIdx.x;
  int h = 0;
  while (row >= work.heads[h].padded_first + work.heads[h].padded) ++h;
  const HeadPlan head = work.heads[h];
  const int m = row - head.padded_first;
  const bool real = m < head.count;
  const int64_t part_step = int64_t{plan.padded_total} * plan.kernel_width;
  for (int d = threadIdx.x; d < plan.kernel_width; d += blockDim.x) {
    float rest = real && d < plan.width ? z[int64_t{head.first + m} * plan.width + d] : 0.0f;
    for (int p = 0; p < kFeatureParts; ++p) {
      const __nv_bfloat16 part = __float2bfloat16_rn(rest);
      work.z[p * part_step + int64_t{row} * plan.kernel_width + d] = part;
      rest -= __bfloat162float(part);
    }
  }
  if (threadIdx.x == 0)
    work.offsets[row] =
        real ? static_cast<float>(0.5 * (log_alpha[head.first + m] - log(double(head.count))) *
                                  1.4426950408889634)
             : -kInfinity;
}

template <class T>
__global__ void split_rows_kernel(const T* x, int64_t rows, int width, int kernel_width, int parts,
                                  __nv_bfloat16* to) {
  const int64_t at = int64_t{blockIdx.x} * kSplitThreads + threadIdx.x, all = rows * kernel_width;
  if (at >= all) return;
  const int d = static_cast<int>(at % kernel_width);
  float rest = d < width ? static_cast<float>(x[at / kernel_width * width + d]) : 0.0f;
  for (int p = 0; p < parts; ++p) {
    const __nv_bfloat16 part = __float2bfloat16_rn(rest);
    to[p * all + at] = part;
    rest -= __bfloat162float(part);
  }
}

// A lane's features in a block of 16 are 4c .. 4c + 3 (c = lane % 4), side by side in memory: this
// is how rows of z are dealt to the columns of a product.
__device__ __forceinline__ uint32_t dealt_lanes() {
  const int lane = threadIdx.x % 32, row = lane % 8 / 2 * 4 + lane / 16 * 2 + lane % 2;
  return swizzled(row, lane / 8 % 2);
}

// Log features of 16 tokens × 64 features: log[q][r][i] is feature 16 q + 4 c + i of row 8 r + g.
struct LogTile {
  float log[4][2][4];
};

template <int kParts, int kWidth>
struct FactorBlock {
  static constexpr int kWidthTiles = kWidth / kTile;
  static constexpr uint32_t kPartBytes = kWidthTiles * kTileBytes;
  static constexpr uint32_t kFeatureTiles = kParts * kPartBytes;  // offset of z

  const Plan& plan;
  const Workspace& work;
  const HeadPlan& head;
  const Side& side;
  int64_t row_base;  // of factors and logs of this head and sequence
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  __device__ int chunks(int tile) const { return min(8, 2 * plan.width16() - 8 * tile); }

  __device__ void fetch_features(int chunk) const {
    const int64_t part_step = int64_t{plan.padded_total} * kWidth;
    const int first = head.padded_first + chunk * kTile, rows = head.padded - chunk * kTile;
    for (int p = 0; p < kFeatureParts; ++p)
      for (int t = 0; t < kWidthTiles; ++t)
        copy_tile<kFactorThreads>(kFeatureTiles + p * kPartBytes + t * kTileBytes,
                                  work.z + p * part_step + int64_t{first} * kWidth + t * kTile,
                                  kWidth, rows, chunks(t));
  }

  __device__ void fetch_rows(int64_t first_row, int rows) const {
    for (int p = 0; p < kParts; ++p)
      for (int t = 0; t < kWidthTiles; ++t)
        copy_tile<kFactorThreads>(
            p * kPartBytes + t * kTileBytes,
            side.x.data + p * side.x.part_step + first_row * kWidth + t * kTile, kWidth, rows,
            chunks(t));
  }

  __device__ LogTile log_features(int chunk) const {
    float sums[8][4] = {};
    multiply_rows<kParts, kFeatureParts>(sums, TileParts{0, kPartBytes}, 16 * warp,
                                         TileParts{kFeatureTiles, kPartBytes}, 0, dealt_lanes(),
                                         plan.width16());
    const float scale = kLog2E / sqrtf(sqrtf(static_cast<float>(plan.width)));
    LogTile out;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int m = chunk * kTile + 16 * q + 4 * (lane % 4);
      if (m >= head.padded) continue;
      const float4 offset = *reinterpret_cast<const float4*>(work.offsets + head.padded_first + m);
      const float offsets[4] = {offset.x, offset.y, offset.z, offset.w};
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          out.log[q][r][i] = sums[2 * q + i / 2][2 * r + i % 2] * scale + offsets[i];
    }
    return out;
  }

  // |x|² of rows g and g + 8 of this warp, from the tiles.
  __device__ float2 squared_norms() const {
    const int row = 16 * warp + lane / 2;
    float sum = 0;
    for (int t = 0; t < kWidthTiles; ++t) {
      for (int chunk = lane % 2 * 4; chunk < min(lane % 2 * 4 + 4, chunks(t)); ++chunk) {
        float values[8] = {};
        for (int p = 0; p < kParts; ++p) {
          const uint4 words = *reinterpret_cast<const uint4*>(
              tile_at(p * kPartBytes + t * kTileBytes, row, chunk * 8));
          const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 pair = unpack_bf16(pairs[i]);
            values[2 * i] += pair.x;
            values[2 * i + 1] += pair.y;
          }
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += values[i] * values[i];
      }
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return make_float2(__shfl_sync(0xffffffffu, sum, 2 * (lane / 4)),
                       __shfl_sync(0xffffffffu, sum, 2 * (lane / 4) + 16));
  }

  // Calls f(q, r, m, row) for the blocks of four logs that this lane holds.
  template <class F>
  __device__ void for_each(int chunk, int token, int rows, const F& f) const {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int m = chunk * kTile + 16 * q + 4 * (lane % 4);
      if (m >= head.padded) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 16 * warp + 8 * r + lane / 4;
        if (row < rows) f(q, r, row_base + int64_t{token + row} * head.padded + m);
      }
    }
  }

  __device__ void emit(const LogTile& logs, int chunk, int token, int rows, const float (&top)[2],
                       const float (&low)[2]) const {
    for_each(chunk, token, rows, [&](int q, int r, int64_t at) {
      float l[4], factor[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        l[i] = logs.log[q][r][i] - top[r];
        factor[i] = fast_exp2(l[i] + kLift);
      }
      if (low[r] - top[r] < kWideRow)
        *reinterpret_cast<float4*>(side.logs + at) = make_float4(l[0], l[1], l[2], l[3]);
      uint32_t first[2], second[2];
      split(factor[0], factor[1], first);
      split(factor[2], factor[3], second);
#pragma unroll
      for (int p = 0; p < kFactorPlanes; ++p)
        *reinterpret_cast<uint2*>(side.factors + p * plan.plane_step() + at) =
            make_uint2(first[p], second[p]);
    });
  }

  __device__ void run_tile(int64_t x_row, int64_t peak_row, int token, bool load_features) const {
    const int rows = min(kTile, plan.tokens - token);
    const int last = (head.padded - 1) / kTile;  // chunk of 64 features
    float top[2] = {-kInfinity, -kInfinity}, low[2] = {kInfinity, kInfinity};
    LogTile logs;
    fetch_rows(x_row + token, rows);
    for (int chunk = 0; chunk <= last; ++chunk) {
      if (chunk > 0) __syncthreads();
      if (last > 0 || load_features) fetch_features(chunk);
      commit_copies();
      wait_for_copies<0>();
      __syncthreads();
      logs = log_features(chunk);
      for_each(chunk, 0, kTile, [&](int q, int r, int64_t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float log = logs.log[q][r][i];
          top[r] = fmaxf(top[r], log);
          if (log > -kInfinity) low[r] = fminf(low[r], log);
        }
      });
      if (chunk < last)
        for_each(chunk, token, rows, [&](int q, int r, int64_t at) {
          const float(&l)[4] = logs.log[q][r];
          *reinterpret_cast<float4*>(side.logs + at) = make_float4(l[0], l[1], l[2], l[3]);
        });
    }
    const float2 norms = squared_norms();
    const float norm_scale =
        plan.subtract_norm ? 0.5f * kLog2E / sqrtf(static_cast<float>(plan.width)) : 0.0f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = quad_max(top[r]);
      low[r] = -quad_max(-low[r]);
      const int row = 16 * warp + 8 * r + lane / 4;
      if (lane % 4 == 0 && row < rows)
        side.peaks[peak_row + token + row] = top[r] - norm_scale * (r == 0 ? norms.x : norms.y);
    }
    emit(logs, last, token, rows, top, low);
    for (int chunk = 0; chunk < last; ++chunk) {
      for_each(chunk, token, rows, [&](int q, int r, int64_t at) {
        const float4 l = *reinterpret_cast<const float4*>(side.logs + at);
        logs.log[q][r][0] = l.x, logs.log[q][r][1] = l.y;
        logs.log[q][r][2] = l.z, logs.log[q][r][3] = l.w;
      });
      emit(logs, chunk, token, rows, top, low);
    }
  }
};

template <int kParts, int kWidth>
__global__ __launch_bounds__(kFactorThreads) void factor_kernel(
    const __grid_constant__ Plan plan, const __grid_constant__ Workspace work) {
  const int h = blockIdx.y, b = blockIdx.z / 2;
  const Side& side = work.side[blockIdx.z % 2];
  const HeadPlan head = work.heads[h];
  const FactorBlock<kParts, kWidth> block{
      plan, work, head, side, (int64_t{b} * plan.padded_total + head.padded_first) * plan.tokens};
  const int64_t x_row = (int64_t{b} * side.x_heads + h / (plan.heads / side.x_heads)) * plan.tokens;
  const int64_t peak_row = (int64_t{b} * plan.heads + h) * plan.tokens;
  for (int i = 0; i < kTilesPerBlock; ++i) {
    const int token = (blockIdx.x * kTilesPerBlock + i) * kTile;
    if (token >= plan.tokens) return;
    if (i > 0) __syncthreads();
    block.run_tile(x_row, peak_row, token, i == 0);
  }
}

template <int kParts, int kWidth>
cudaError_t launch_factors(const Plan& plan, const Workspace& work, cudaStream_t stream) {
  const dim3 grid((plan.tiles + kTilesPerBlock - 1) / kTilesPerBlock, plan.heads, 2 * plan.batch);
  const size_t shared = (kParts + kFeatureParts) * (kWidth / kTile) * kTileBytes;
  return launch(factor_kernel<kParts, kWidth>, grid, kFactorThreads, shared, stream, plan, work);
}

cudaError_t split_inputs(const Plan& plan, const Workspace& work, const FeatureLossInputs& inputs,
                         cudaStream_t stream) {
  for (int i = 0; i < 2; ++i) {
    const int64_t rows = int64_t{plan.batch} * work.side[i].x_heads * plan.tokens;
    const auto blocks =
        static_cast<unsigned>((rows * plan.kernel_width + kSplitThreads - 1) / kSplitThreads);
    const void* x = i == 0 ? inputs.q : inputs.k;
    const auto split = [&](auto kernel, auto* from) {
      return launch(kernel, dim3(blocks), kSplitThreads, 0, stream, from, rows, plan.width,
                    plan.kernel_width, plan.parts, work.x_parts[i]);
    };
    const cudaError_t status =
        plan.parts == 1
            ? split(split_rows_kernel<__nv_bfloat16>, static_cast<const __nv_bfloat16*>(x))
            : split(split_rows_kernel<float>, static_cast<const float*>(x));
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t write_plan(const Plan& plan, const int64_t* counts, const Workspace& work,
                       cudaStream_t stream) {
  Counts by_value{};
  for (int h = 0; h < plan.heads; ++h) by_value.count[h] = static_cast<int>(counts[h]);
  return launch(plan_kernel, dim3(1), kMostHeads, 0, stream, plan, by_value, work);
}

cudaError_t write_factors(const Plan& plan, const Workspace& work, const FeatureLossInputs& inputs,
                          bool copy_inputs, cudaStream_t stream) {
  cudaError_t status = launch(split_features_kernel, dim3(static_cast<unsigned>(plan.padded_total)),
                              64, 0, stream, plan, work, inputs.z, inputs.log_alpha);
  if (status == cudaSuccess && copy_inputs) status = split_inputs(plan, work, inputs, stream);
  if (status != cudaSuccess) return status;
  if (plan.parts == 1)
    return plan.kernel_width == 64 ? launch_factors<1, 64>(plan, work, stream)
                                   : launch_factors<1, 128>(plan, work, stream);
  return plan.kernel_width == 64 ? launch_factors<3, 64>(plan, work, stream)
                                 : launch_factors<3, 128>(plan, work, stream);
}

}  // namespace dofla::cuda::feature_pairs
