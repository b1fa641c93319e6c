// Before the pairs: the log features of every query and key, turned into a peak and factors
// 2^(log φ̃ − peak + kLift), and the sums of K̂ over tiles of keys.
#include "dofla/ops/cuda/feature_loss_log_features.cuh"
#include "dofla/ops/cuda/launch.cuh"

namespace dofla::cuda::feature_pairs {
namespace {

constexpr int kTilesPerBlock = 4;  // so that a block's z is loaded once for 256 tokens

// Σ 2^x of numbers that come one after another, as 2^top · sum.
struct RunningSum {
  float top = kNothing, sum = 0;

  __device__ __forceinline__ void add(float x) {
    const float raised = fmaxf(top, x);
    sum = sum * fast_exp2(top - raised) + fast_exp2(x - raised);
    top = raised;
  }
  __device__ __forceinline__ void add(const RunningSum& other) {
    const float raised = fmaxf(top, other.top);
    sum = sum * fast_exp2(top - raised) + other.sum * fast_exp2(other.top - raised);
    top = raised;
  }
  __device__ __forceinline__ float log() const { return top + log2f(sum); }
};

template <int kParts, int kWidth>
struct FactorBlock : LogFeatures<kParts, kWidth> {
  using Base = LogFeatures<kParts, kWidth>;
  using Base::Base, Base::plan, Base::work, Base::head, Base::side, Base::lane, Base::warp;

  // Log-sums of a tile of keys, feature by feature.
  __device__ void sum_keys(const LogTile& logs, int chunk, int rows, const float (&norm)[2],
                           int tile) const {
    __shared__ RunningSum of_warp[kFactorThreads / 32][kTile];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      RunningSum sum;
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (16 * warp + 8 * r + lane / 4 < rows) sum.add(logs.log[i / 4][r][i % 4] - norm[r]);
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        RunningSum other;
        other.top = __shfl_xor_sync(0xffffffffu, sum.top, step);
        other.sum = __shfl_xor_sync(0xffffffffu, sum.sum, step);
        sum.add(other);
      }
      if (lane < 4) of_warp[warp][i / 4 * 16 + 4 * lane + i % 4] = sum;
    }
    __syncthreads();
    const int m = chunk * kTile + threadIdx.x;
    if (threadIdx.x < kTile && m < head.padded) {
      RunningSum all = of_warp[0][threadIdx.x];
      for (int w = 1; w < kFactorThreads / 32; ++w) all.add(of_warp[w][threadIdx.x]);
      this->sums_of_tile(tile)[m] = all.log();
    }
    __syncthreads();
  }

  __device__ void emit(const LogTile& logs, int chunk, int token, int rows, const float (&top)[2],
                       const float (&low)[2]) const {
    this->for_each(chunk, rows, [&](int q, int r, int row, int m) {
      const int64_t at = this->row_base + int64_t{token + row} * head.padded + m;
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

  // Adds the products of queries with the keys of earlier tiles.
  __device__ void add_earlier(const LogTile& logs, int chunk, int rows, const float (&top)[2],
                              int tile, RunningSum (&earlier)[2]) const {
    this->for_each(chunk, rows, [&](int q, int r, int, int m) {
      const float4 keys = *reinterpret_cast<const float4*>(this->sums_of_tile(tile) + m);
      earlier[r].add(logs.log[q][r][0] - top[r] + keys.x);
      earlier[r].add(logs.log[q][r][1] - top[r] + keys.y);
      earlier[r].add(logs.log[q][r][2] - top[r] + keys.z);
      earlier[r].add(logs.log[q][r][3] - top[r] + keys.w);
    });
  }

  // Logs of a row of more than one chunk are kept in device memory until the row's peak is known.
  __device__ void keep(const LogTile& logs, int chunk, int token, int rows) const {
    this->for_each(chunk, rows, [&](int q, int r, int row, int m) {
      const float(&l)[4] = logs.log[q][r];
      *reinterpret_cast<float4*>(side.logs + this->row_base + int64_t{token + row} * head.padded +
                                 m) = make_float4(l[0], l[1], l[2], l[3]);
    });
  }
  __device__ LogTile kept(int chunk, int token, int rows) const {
    LogTile logs;
    this->for_each(chunk, rows, [&](int q, int r, int row, int m) {
      const float4 l = *reinterpret_cast<const float4*>(side.logs + this->row_base +
                                                        int64_t{token + row} * head.padded + m);
      logs.log[q][r][0] = l.x, logs.log[q][r][1] = l.y;
      logs.log[q][r][2] = l.z, logs.log[q][r][3] = l.w;
    });
    return logs;
  }

  // |x|²/(2√D) of every row, which the gradient of η is made of.
  __device__ void keep_norms(int tile, int rows) const {
    float norms[2];
    this->norm_terms(tile % 2, 0.5f / sqrtf(static_cast<float>(plan.width)), norms);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = 16 * warp + 8 * r + lane / 4;
      if (lane % 4 == 0 && row < rows) side.norms[this->peak_row + tile * kTile + row] = norms[r];
    }
  }

  // Starts loading the rows of a tile, if there is such a tile.
  __device__ void fetch_tile(int tile) const {
    if (tile < plan.tiles)
      this->fetch_rows(tile % 2, tile * kTile, min(kTile, plan.tokens - tile * kTile), 1);
  }

  // The rows of the tile are being loaded already; loads those of the next one, unless it is the
  // last.
  __device__ void run_tile(int tile, bool keys, bool first_tile, bool last_tile) const {
    const int token = tile * kTile, rows = min(kTile, plan.tokens - token);
    const int last = (head.padded - 1) / kTile;  // chunk of 64 features
    float top[2] = {-kInfinity, -kInfinity}, low[2] = {kInfinity, kInfinity}, norm[2];
    LogTile logs;
    for (int chunk = 0; chunk <= last; ++chunk) {
      if (chunk > 0) __syncthreads();
      if (last > 0 || first_tile) this->fetch_features(chunk);
      commit_copies();
      wait_for_copies<0>();
      __syncthreads();
      if (chunk == 0) {
        if (!last_tile) fetch_tile(tile + 1);
        this->norm_terms(tile % 2, this->norm_scale(), norm);
        if (side.norms != nullptr) keep_norms(tile, rows);
      }
      logs = this->log_features(tile % 2, chunk);
      this->for_each(chunk, kTile, [&](int q, int r, int, int) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float log = logs.log[q][r][i];
          top[r] = fmaxf(top[r], log);
          if (log > -kInfinity) low[r] = fminf(low[r], log);
        }
      });
      if (keys && plan.row_sums_from_features()) sum_keys(logs, chunk, rows, norm, tile);
      if (chunk < last) keep(logs, chunk, token, rows);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = quad_max(top[r]);
      low[r] = -quad_max(-low[r]);
    }
    RunningSum earlier[2];
    for (int chunk = last; chunk >= 0; --chunk) {
      if (chunk < last) logs = kept(chunk, token, rows);
      if (!keys && plan.row_sums_from_features())
        add_earlier(logs, chunk, rows, top, tile, earlier);
      emit(logs, chunk, token, rows, top, low);
    }
    finish_rows(token, rows, keys, top, norm, earlier);
  }

  __device__ void finish_rows(int token, int rows, bool keys, const float (&top)[2],
                              const float (&norm)[2], RunningSum (&earlier)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int step = 1; step <= 2; step *= 2) {
        RunningSum other;
        other.top = __shfl_xor_sync(0xffffffffu, earlier[r].top, step);
        other.sum = __shfl_xor_sync(0xffffffffu, earlier[r].sum, step);
        earlier[r].add(other);
      }
      const int row = 16 * warp + 8 * r + lane / 4;
      if (lane % 4 != 0 || row >= rows) continue;
      const int64_t at = this->peak_row + token + row;
      const float peak = top[r] - norm[r];
      side.peaks[at] = peak;
      if (keys || !plan.row_sums_from_features()) continue;
      if (work.rest != nullptr) earlier[r].add(kLog2E * work.rest[at] - peak);
      work.earlier[at] = fmaxf(kNothing, earlier[r].log() + 2 * kLift);
    }
  }
};

template <int kParts, int kWidth>
__global__ __launch_bounds__(kFactorThreads) void factor_kernel(
    const __grid_constant__ Plan plan, const __grid_constant__ Workspace work, int side) {
  const FactorBlock<kParts, kWidth> block(plan, work, side, blockIdx.y, blockIdx.z,
                                          side == 0 ? 1.0f : -1.0f);
  const int first = blockIdx.x * kTilesPerBlock, end = min(first + kTilesPerBlock, plan.tiles);
  block.fetch_tile(first);
  for (int tile = first; tile < end; ++tile) {
    if (tile > first) __syncthreads();
    block.run_tile(tile, side == 1, tile == first, tile + 1 == end);
  }
}

// Sums of tiles become sums of all tiles before; without a mask, of all tiles. A thread a sequence
// and feature.
__global__ void sum_tiles_kernel(Plan plan, float* sums) {
  const int m = blockIdx.x * blockDim.x + threadIdx.x;
  if (m >= plan.padded_total) return;
  float* at = sums + int64_t{blockIdx.y} * plan.tiles * plan.padded_total + m;
  RunningSum all;
  for (int tile = 0; tile < plan.tiles; ++tile) {
    float& here = at[int64_t{tile} * plan.padded_total];
    const float own = here;
    if (plan.causal) here = fmaxf(kNothing, all.log());
    all.add(fmaxf(kNothing, own));
  }
  if (plan.causal) return;
  for (int tile = 0; tile < plan.tiles; ++tile) at[int64_t{tile} * plan.padded_total] = all.log();
}

template <int kParts, int kWidth>
cudaError_t launch_factors(const Plan& plan, const Workspace& work, cudaStream_t stream) {
  const size_t shared = LogFeatures<kParts, kWidth>::kSharedBytes;
  const auto heads = static_cast<unsigned>(plan.heads), batch = static_cast<unsigned>(plan.batch);
  const dim3 grid((plan.tiles + kTilesPerBlock - 1) / kTilesPerBlock, heads, batch);
  const auto factors = [&](int side) {
    return launch(factor_kernel<kParts, kWidth>, grid, kFactorThreads, shared, stream, plan, work,
                  side);
  };
  cudaError_t status = factors(1);
  if (status == cudaSuccess && plan.row_sums_from_features())
    status = launch(sum_tiles_kernel, dim3((plan.padded_total + 127) / 128, batch), 128, 0, stream,
                    plan, work.key_sums);
  return status == cudaSuccess ? factors(0) : status;
}

}  // namespace

cudaError_t write_factors(const Plan& plan, const Workspace& work, cudaStream_t stream) {
  return with_tiling(plan, [&](auto parts, auto width) {
    return launch_factors<decltype(parts)::value, decltype(width)::value>(plan, work, stream);
  });
}

}  // namespace dofla::cuda::feature_pairs
