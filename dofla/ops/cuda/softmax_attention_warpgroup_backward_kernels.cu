// The backward in bf16 on GPUs with warpgroup products (sm_90a), in one pass: a block has a tile of
// keys and goes over the queries that see it. What its keys give to the gradients of queries is
// added to what other blocks found, in an order that never changes.
#include <algorithm>
#include <cmath>

#include "dofla/ops/cuda/launch.cuh"
#include "dofla/ops/cuda/softmax_attention_warpgroup_backward.h"
#include "dofla/ops/cuda/softmax_backward_keys.cuh"
#include "dofla/ops/cuda/softmax_backward_queries.cuh"
#include "dofla/ops/cuda/tensor_map.h"

namespace dofla::cuda {
namespace {

using Element16 = __nv_bfloat16;
constexpr float kLog2E = 1.4426950408889634f;
constexpr int kLanes = 8;  // of a row in the kernel of the statistics

struct StatisticsArguments {
  HeadRows out, grad_out;
  const float* log_sum;  // [B, H, T]
  float* statistics;
  int* added;
  int* next_item;
  int heads, queries, width, query_tiles;
};

// A block has a tile of queries of one head. Rows after the last one get a probability of 0.
__global__ void __launch_bounds__(kLanes* kBackwardQueries)
    query_statistics(const __grid_constant__ StatisticsArguments a) {
  static_assert(8 * kLanes == kBackwardWidth);
  const int index = blockIdx.x, tile = index % a.query_tiles, head = index / a.query_tiles;
  const int b = head / a.heads, h = head % a.heads;
  const int row = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int query = tile * kBackwardQueries + row;
  float e = 0;
  if (query < a.queries && 8 * lane < a.width) {
    const auto pack = [&](const HeadRows& rows) {
      return load_pack(head_of<Element16>(rows, b, h) + query * rows.token_step + 8 * lane);
    };
    const Pack<Element16> out = pack(a.out), grad = pack(a.grad_out);
#pragma unroll
    for (int i = 0; i < 8; ++i) e = fmaf(out.values[i], grad.values[i], e);
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) e += __shfl_xor_sync(kWholeWarp, e, step);
  if (lane != 0) return;
  float* const to = a.statistics + int64_t{index} * 2 * kBackwardQueries;
  to[row] = query < a.queries ? -kLog2E * a.log_sum[int64_t{head} * a.queries + query] : -INFINITY;
  to[kBackwardQueries + row] = -e;
  if (row == 0) a.added[index] = 0;
  if (row == 0 && index == 0) *a.next_item = 0;
}

__global__ void __launch_bounds__(BackwardBlock::kThreads, 1)
    softmax_attention_warpgroup_backward(const __grid_constant__ WarpgroupBackwardArguments a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const BackwardBlock block(a);
  if (threadIdx.x == 0) block.init();
  __syncthreads();
  const int group = threadIdx.x / 128;
  if (group < 2) {
    take_registers<200>();
    KeyWarpgroup(block).run();
  } else if (group == 2) {
    give_registers<80>();
    sum_query_gradients(block);
  } else {
    give_registers<32>();
    const int warp = threadIdx.x % 128 / 32;
    if (warp < BackwardBlock::kWriters)
      QueryGradientWriter(block, warp).run();
    else if (threadIdx.x % 128 == 32 * BackwardBlock::kWriters)
      load_tiles(block);
  }
#endif
}

// The places of the workspace.
struct Workspace {
  float *partials, *statistics;
  int *added, *next_item;
  int64_t bytes;

  Workspace(const SoftmaxAttentionShape& s, void* memory) {
    const int64_t tiles =
        s.batch * s.heads * ((s.queries + kBackwardQueries - 1) / kBackwardQueries);
    partials = static_cast<float*>(memory);
    statistics = partials + tiles * kBackwardQueries * kBackwardWidth;
    added = reinterpret_cast<int*>(statistics + tiles * 2 * kBackwardQueries);
    next_item = added + tiles;
    bytes = (tiles * (kBackwardQueries * (kBackwardWidth + 2) + 1) + 1) * 4;
  }
};

cudaError_t launch_backward(const WarpgroupBackwardArguments& a, cudaStream_t stream) {
  int device = 0, multiprocessors = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess)
    status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  return launch(softmax_attention_warpgroup_backward,
                dim3(static_cast<unsigned>(std::min(a.items, multiprocessors))),
                BackwardBlock::kThreads, BackwardBlock::kSharedBytes, stream, a);
}

cudaError_t describe(const SoftmaxAttentionShape& s, const SoftmaxBackwardRows& rows,
                     WarpgroupBackwardArguments& a) {
  const auto of_queries = [&](const HeadRows& x, CUtensorMap& map) {
    return describe_heads(x, s.batch, s.heads, s.queries, s.width, kBackwardQueries, map);
  };
  const auto of_keys = [&](const HeadRows& x, CUtensorMap& map) {
    return describe_heads(x, s.batch, s.key_heads, s.keys, s.width, kBackwardKeys, map);
  };
  cudaError_t status = of_queries(rows.q, a.q);
  if (status == cudaSuccess) status = of_queries(rows.grad_out, a.grad_out);
  if (status == cudaSuccess) status = of_keys(rows.k, a.k);
  if (status == cudaSuccess) status = of_keys(rows.v, a.v);
  return status;
}

}  // namespace

int64_t warpgroup_backward_workspace_bytes(const SoftmaxAttentionShape& shape) {
  return Workspace(shape, nullptr).bytes;
}

cudaError_t launch_warpgroup_backward(const SoftmaxAttentionShape& s,
                                      const SoftmaxBackwardRows& rows, const float* log_sum,
                                      const SoftmaxAttentionGradientsOut& gradients,
                                      void* workspace, cudaStream_t stream) {
  if (s.batch == 0) return cudaSuccess;
  const Workspace work(s, workspace);
  WarpgroupBackwardArguments a = {};
  cudaError_t status = describe(s, rows, a);
  if (status != cudaSuccess) return status;
  a.grad_q = gradients.q, a.grad_k = gradients.k, a.grad_v = gradients.v;
  a.statistics = work.statistics, a.partials = work.partials;
  a.added = work.added, a.next_item = work.next_item;
  a.heads = static_cast<int>(s.heads), a.group = static_cast<int>(s.heads / s.key_heads);
  a.queries = static_cast<int>(s.queries), a.keys = static_cast<int>(s.keys);
  a.width = static_cast<int>(s.width);
  a.query_tiles = (a.queries + kBackwardQueries - 1) / kBackwardQueries;
  a.key_tiles = (a.keys + kBackwardKeys - 1) / kBackwardKeys;
  a.items = static_cast<int>(s.batch * s.key_heads) * a.key_tiles;
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.width)));
  a.log2_scale = a.scale * kLog2E;
  status = launch(query_statistics, dim3(static_cast<unsigned>(s.batch * s.heads * a.query_tiles)),
                  kLanes * kBackwardQueries, 0, stream,
                  StatisticsArguments{rows.out, rows.grad_out, log_sum, work.statistics, work.added,
                                      work.next_item, a.heads, a.queries, a.width, a.query_tiles});
  if (status != cudaSuccess) return status;
  return launch_backward(a, stream);
}

}  // namespace dofla::cuda
