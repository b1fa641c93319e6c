// With P the probabilities, g the gradient of the output and e_i = g_i·out_i, a logit's gradient is
// P_ij (g_i·v_j − e_i). One kernel, two roles: a block owns a tile of keys and sums dk and dv over
// the queries that see them, or owns a tile of queries and sums dq over the keys that it sees.
// Computing P twice is the price of sums in a fixed order. Where there are warpgroup products, most
// of bf16 has a kernel of its own (softmax_attention_warpgroup_backward_kernels.cu).
#include <algorithm>
#include <cmath>

#include "dofla/ops/cuda/attention_parts.h"
#include "dofla/ops/cuda/gradient_rows.cuh"
#include "dofla/ops/cuda/head_rows.cuh"
#include "dofla/ops/cuda/launch.cuh"
#include "dofla/ops/cuda/softmax_attention_kernels.h"
#include "dofla/ops/cuda/softmax_attention_warpgroup_backward.h"

namespace dofla::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kOwnTile = 16 * kWarps;
constexpr float kLog2E = 1.4426950408889634f;

template <class T, int kWidth>
struct Tiling {
  static constexpr int kOtherTile = kWidth > 64 ? 32 : 64;
  static constexpr int kStride = kWidth + 8;
  static constexpr int kOwnElements = kOwnTile * kStride, kOtherElements = kOtherTile * kStride;
  // Two own tiles; two stages of two other tiles, with log sums and e of their rows.
  static constexpr size_t kSharedBytes =
      (2 * kOwnElements + 4 * kOtherElements) * sizeof(T) + 4 * kOtherTile * sizeof(float);
};

struct BackwardArguments {
  HeadRows q, k, v, g;
  HeadRowsOut grad_q, grad_k, grad_v;
  const float* log_sum;  // [B, H, T]
  const float* e;        // [B, H, T]
  int heads, group, queries, keys, width, own_tiles;
  float scale;
  bool packed, packed_q, packed_k, packed_v;
};

// The tiles of the other side that a block passes over: [begin, end) of heads [head, head + heads).
struct Passes {
  int head, heads, begin, end;
  __device__ int count() const { return heads * (end - begin); }
};

template <bool kOwnKeys, int kOtherTile>
__device__ Passes passes_of(const BackwardArguments& a, int own_head, int first) {
  const int past = a.keys - a.queries;
  if constexpr (kOwnKeys)
    return {own_head * a.group, a.group, max(first - past, 0) / kOtherTile,
            (a.queries + kOtherTile - 1) / kOtherTile};
  const int visible = past + min(first + kOwnTile, a.queries);
  return {own_head / a.group, 1, 0, (visible + kOtherTile - 1) / kOtherTile};
}

template <class T, int kWidth, bool kOwnKeys>
__global__ void __launch_bounds__(kThreads)
    softmax_attention_backward(const __grid_constant__ BackwardArguments a) {
  using Tiles = Tiling<T, kWidth>;
  constexpr int kOther = Tiles::kOtherTile, kBlocks = kOther / 8;
  T* shared = reinterpret_cast<T*>(shared_memory());
  const auto own_tile = [&](int which) {
    return Tile<T, Tiles::kStride>{shared + which * Tiles::kOwnElements};
  };
  const auto other_tile = [&](int pass, int which) {
    return Tile<T, Tiles::kStride>{shared + 2 * Tiles::kOwnElements +
                                   (pass % 2 * 2 + which) * Tiles::kOtherElements};
  };
  float* other_rows =
      reinterpret_cast<float*>(shared + 2 * Tiles::kOwnElements + 4 * Tiles::kOtherElements);
  const auto other_value = [&](int pass, int which) {  // 0: log sums, 1: e
    return other_rows + (pass % 2 * 2 + which) * kOther;
  };

  const int own_heads = kOwnKeys ? a.heads / a.group : a.heads;
  const int own_rows = kOwnKeys ? a.keys : a.queries, past = a.keys - a.queries;
  const int tile = kOwnKeys ? static_cast<int>(blockIdx.x) % a.own_tiles
                            : a.own_tiles - 1 - static_cast<int>(blockIdx.x) % a.own_tiles;
  const int index = blockIdx.x / a.own_tiles, b = index / own_heads, h = index % own_heads;
  const int first = tile * kOwnTile, warp_row = threadIdx.x / 32 * 16;
  const Passes passes = passes_of<kOwnKeys, kOther>(a, h, first);
  // Keys and queries come with values and output gradients.
  const HeadRows own0 = kOwnKeys ? a.k : a.q, own1 = kOwnKeys ? a.v : a.g;
  const HeadRows other0 = kOwnKeys ? a.q : a.k, other1 = kOwnKeys ? a.g : a.v;

  const auto load_own = [&](const HeadRows& rows, int which) {
    load_rows<kOwnTile, kWidth, kThreads>(own_tile(which),
                                          head_of<T>(rows, b, h) + first * rows.token_step,
                                          rows.token_step, own_rows - first, a.width, a.packed);
  };
  const auto place = [&](int pass) {  // head and first row of the other side
    const int tiles = passes.end - passes.begin;
    return make_int2(passes.head + pass / tiles, (passes.begin + pass % tiles) * kOther);
  };
  const auto load_other = [&](int pass) {
    const int2 at = place(pass);
    const int rows = (kOwnKeys ? a.queries : a.keys) - at.y;
    load_rows<kOther, kWidth, kThreads>(other_tile(pass, 0),
                                        head_of<T>(other0, b, at.x) + at.y * other0.token_step,
                                        other0.token_step, rows, a.width, a.packed);
    load_rows<kOther, kWidth, kThreads>(other_tile(pass, 1),
                                        head_of<T>(other1, b, at.x) + at.y * other1.token_step,
                                        other1.token_step, rows, a.width, a.packed);
    if (kOwnKeys && threadIdx.x < kOther) {
      const int64_t row = (int64_t{b} * a.heads + at.x) * a.queries + at.y + threadIdx.x;
      const bool valid = static_cast<int>(threadIdx.x) < rows;
      copy_4_bytes(other_value(pass, 0) + threadIdx.x, a.log_sum + (valid ? row : 0), valid);
      copy_4_bytes(other_value(pass, 1) + threadIdx.x, a.e + (valid ? row : 0), valid);
    }
    commit_copies();
  };

  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  float own_log[2] = {}, own_e[2] = {};
  if (!kOwnKeys) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + warp_row + 8 * half + g;
      if (row >= a.queries) continue;
      own_log[half] = a.log_sum[(int64_t{b} * a.heads + h) * a.queries + row];
      own_e[half] = a.e[(int64_t{b} * a.heads + h) * a.queries + row];
    }
  }
  float grad0[kWidth / 8][4] = {};                 // of keys or queries
  float grad1[kOwnKeys ? kWidth / 8 : 1][4] = {};  // of values
  load_own(own0, 0);
  load_own(own1, 1);
  if (passes.count() > 0) load_other(0);
  wait_for_copies<0>();
  __syncthreads();
  const float log2_scale = a.scale * kLog2E;
  for (int pass = 0; pass < passes.count(); ++pass) {
    if (pass + 1 < passes.count()) load_other(pass + 1);
    if (first + warp_row < own_rows) {  // short sequences leave warps without rows
      const int other_first = place(pass).y;
      float weight[kBlocks][4] = {}, gradient[kBlocks][4] = {};
      dot_rows<kWidth>(own_tile(0), warp_row, other_tile(pass, 0), weight);
      dot_rows<kWidth>(own_tile(1), warp_row, other_tile(pass, 1), gradient);
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = 8 * n + 2 * c + i % 2;
          const int own = first + warp_row + g + i / 2 * 8, other = other_first + column;
          const int query = kOwnKeys ? other : own, key = kOwnKeys ? own : other;
          const float log = kOwnKeys ? other_value(pass, 0)[column] : own_log[i / 2];
          const float e = kOwnKeys ? other_value(pass, 1)[column] : own_e[i / 2];
          const bool seen = query < a.queries && key <= past + query;
          weight[n][i] = seen ? fast_exp2(fmaf(weight[n][i], log2_scale, -log * kLog2E)) : 0.0f;
          gradient[n][i] = weight[n][i] * (gradient[n][i] - e);
        }
      }
      RoundedSums<T, kBlocks> rounded;
      if constexpr (kOwnKeys) {
        round_sums(weight, rounded);
        add_rows<kWidth>(rounded, other_tile(pass, 1), grad1);
      }
      round_sums(gradient, rounded);
      add_rows<kWidth>(rounded, other_tile(pass, 0), grad0);
    }
    wait_for_copies<0>();
    __syncthreads();
  }
  const HeadRowsOut& out0 = kOwnKeys ? a.grad_k : a.grad_q;
  write_rows<T, kWidth>(grad0, a.scale, first + warp_row, own_rows, a.width,
                        kOwnKeys ? a.packed_k : a.packed_q, head_of<T>(out0, b, h),
                        out0.token_step);
  if constexpr (kOwnKeys)
    write_rows<T, kWidth>(grad1, 1.0f, first + warp_row, own_rows, a.width, a.packed_v,
                          head_of<T>(a.grad_v, b, h), a.grad_v.token_step);
}

template <class T, int kWidth, bool kOwnKeys>
cudaError_t launch_role(const SoftmaxAttentionShape& s, BackwardArguments a, cudaStream_t stream) {
  a.own_tiles = static_cast<int>(((kOwnKeys ? s.keys : s.queries) + kOwnTile - 1) / kOwnTile);
  const int64_t heads = s.batch * (kOwnKeys ? s.key_heads : s.heads);
  return launch(softmax_attention_backward<T, kWidth, kOwnKeys>,
                dim3(static_cast<unsigned>(heads * a.own_tiles)), kThreads,
                Tiling<T, kWidth>::kSharedBytes, stream, a);
}

template <class T>
cudaError_t launch_roles(const SoftmaxAttentionShape& s, const BackwardArguments& a,
                         cudaStream_t stream) {
  return with_width(s.width, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const cudaError_t status = launch_role<T, kWidth, true>(s, a, stream);
    return status != cudaSuccess ? status : launch_role<T, kWidth, false>(s, a, stream);
  });
}

bool shape_suits_warpgroups(const SoftmaxAttentionShape& s) {
  return s.element == Element::kBF16 && s.queries >= 64 && s.width > 32 && s.width <= 64 &&
         s.width % 8 == 0 && warpgroups_available();
}

bool rows_suit_warpgroups(const SoftmaxAttentionShape& s, const SoftmaxBackwardRows& rows,
                          const SoftmaxAttentionGradientsOut& gradients) {
  const auto suit = [&](const auto&... all) { return (in_packs(all, s.element, s.width) && ...); };
  return suit(rows.q, rows.k, rows.v, rows.out, rows.grad_out) &&
         suit(gradients.q, gradients.k, gradients.v);
}

}  // namespace

int64_t softmax_attention_backward_workspace_bytes(const SoftmaxAttentionShape& s) {
  const int64_t e_bytes = s.batch * s.heads * s.queries * 4;
  return shape_suits_warpgroups(s) ? std::max(e_bytes, warpgroup_backward_workspace_bytes(s))
                                   : e_bytes;
}

cudaError_t launch_softmax_attention_backward(const SoftmaxAttentionShape& s, const HeadRows& q,
                                              const HeadRows& k, const HeadRows& v,
                                              const HeadRows& out, const float* log_sum,
                                              const HeadRows& grad_out,
                                              const SoftmaxAttentionGradientsOut& gradients,
                                              void* workspace, cudaStream_t stream) {
  if (s.key_heads < 1 || s.heads % s.key_heads != 0 || s.queries > s.keys)
    return cudaErrorInvalidValue;
  const SoftmaxBackwardRows rows = {q, k, v, out, grad_out};
  if (shape_suits_warpgroups(s) && rows_suit_warpgroups(s, rows, gradients))
    return launch_warpgroup_backward(s, rows, log_sum, gradients, workspace, stream);
  float* e = static_cast<float*>(workspace);
  const cudaError_t status = launch_row_dots(
      {s.element, s.batch, s.heads, s.heads, s.queries, s.width}, grad_out, out, e, stream);
  if (status != cudaSuccess) return status;
  BackwardArguments a = {};
  a.q = q, a.k = k, a.v = v, a.g = grad_out;
  a.grad_q = gradients.q, a.grad_k = gradients.k, a.grad_v = gradients.v;
  a.log_sum = log_sum, a.e = e;
  a.heads = static_cast<int>(s.heads), a.group = static_cast<int>(s.heads / s.key_heads);
  a.queries = static_cast<int>(s.queries), a.keys = static_cast<int>(s.keys);
  a.width = static_cast<int>(s.width);
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.width)));
  a.packed = in_packs(q, s.element, s.width) && in_packs(k, s.element, s.width) &&
             in_packs(v, s.element, s.width) && in_packs(grad_out, s.element, s.width);
  a.packed_q = in_packs(gradients.q, s.element, s.width);
  a.packed_k = in_packs(gradients.k, s.element, s.width);
  a.packed_v = in_packs(gradients.v, s.element, s.width);
  return s.element == Element::kF32 ? launch_roles<float>(s, a, stream)
                                    : launch_roles<__nv_bfloat16>(s, a, stream);
}

}  // namespace dofla::cuda
