// Gradients of the linear attention: the sweeps over queries and over keys are independent, so that
// one launch does them side by side; then sums over sequences, and over blocks that share a head.
#include "dofla/ops/cuda/launch.cuh"
#include "dofla/ops/cuda/linear_attention_sweep.cuh"

namespace dofla::cuda {
namespace {

template <class T, int kWidth>
__global__ void __launch_bounds__((SweepTiling<T, kWidth>::kThreads),
                                  (SweepTiling<T, kWidth>::kBlocksAtOnce))
    linear_attention_backward(const __grid_constant__ LinearBackwardArguments a) {
  T* memory = reinterpret_cast<T*>(shared_memory());
  // The longer sweep goes first.
  if (blockIdx.z == 0)
    Sweep<T, kWidth, true>(a, memory).run();
  else
    Sweep<T, kWidth, false>(a, memory).run();
}

// to = Σ_p parts[p], in order
__global__ void add_up(const float* __restrict__ parts, int count, int64_t size,
                       float* __restrict__ to) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= size) return;
  float sum = 0;
#pragma unroll 8
  for (int p = 0; p < count; ++p) sum += parts[p * size + i];
  to[i] = sum;
}

// The rows of query heads that share a state, and of `sides` parts from `side` on, to one row each:
// to[m, d] = Σ_b Σ_side Σ_h parts[b, side, h's m, d], in that order. A thread a number.
__global__ void add_up_groups(const float* __restrict__ parts, int batch, int side, int sides,
                              const __grid_constant__ FeatureTable table, int width, int64_t size,
                              float* __restrict__ to) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= size) return;
  const int sharing = table.sharing, m = static_cast<int>(i / width);
  int head = 0;  // the first of the query heads
  while (m >= table.first[head + sharing] / sharing) head += sharing;
  const int64_t within = i - int64_t{table.first[head] / sharing} * width;
  float sum = 0;
  for (int b = 0; b < batch; ++b)
    for (int s = side; s < side + sides; ++s)
      for (int h = head; h < head + sharing; ++h)
        sum += parts[(b * 2 + s) * size * sharing + int64_t{table.first[h]} * width + within];
  to[i] = sum;
}

// to[b] = Σ of head b's share of [B, P], over the parts of its query heads. A thread a head.
__global__ void add_up_norms(const float* __restrict__ parts, int batch, int count,
                             const __grid_constant__ PartTable table, int sharing,
                             float* __restrict__ to) {
  const int head = threadIdx.x;
  float sum = 0;
  for (int b = 0; b < batch; ++b)
    for (int p = table.first[head * sharing]; p < table.first[(head + 1) * sharing]; ++p)
      sum += parts[int64_t{b} * count + p];
  to[head] = sum;
}

template <class T>
cudaError_t launch_sweeps(const LinearAttentionShape& s, const LinearBackwardArguments& a,
                          int64_t parts, cudaStream_t stream) {
  return with_width(s.width, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    using Tiling = SweepTiling<T, kWidth>;
    const dim3 grid(static_cast<unsigned>(parts), static_cast<unsigned>(s.batch), 2);
    return launch(linear_attention_backward<T, kWidth>, grid, Tiling::kThreads,
                  Tiling::shared_bytes(a.u != nullptr), stream, a);
  });
}

// The parts of the workspace; gradients that several blocks contribute to have parts of their own.
struct Workspace {
  Workspace(const LinearAttentionShape& s, const FeatureParts& f, void* memory)
      : at(static_cast<float*>(memory)) {
    const bool query_parts = f.count > s.heads, key_parts = f.count > s.key_heads;
    const int64_t part = s.batch * f.count * s.tokens * s.width;
    e = allocate(s.batch * s.heads * s.tokens);
    grad_directions = allocate(2 * s.batch * f.total * s.width);
    grad_log_alpha = allocate(2 * s.batch * f.total);
    grad_norm = allocate(s.batch * f.count);
    q = query_parts ? allocate(part) : nullptr;
    k = key_parts ? allocate(part) : nullptr;
    v = key_parts ? allocate(part) : nullptr;
  }
  float* allocate(int64_t count) {
    float* allocated = at == nullptr ? nullptr : at + floats;
    floats += (count + 3) / 4 * 4;
    return allocated;
  }
  float* at;
  int64_t floats = 0;
  float *e, *grad_directions, *grad_log_alpha, *grad_norm, *q, *k, *v;
};

}  // namespace

int64_t linear_attention_backward_workspace_bytes(const LinearAttentionShape& s,
                                                  const LinearAttentionFeatures& features) {
  return Workspace(s, feature_parts(s, features), nullptr).floats * 4;
}

cudaError_t launch_linear_attention_backward(const LinearAttentionShape& s,
                                             const LinearAttentionFeatures& features,
                                             const HeadRows& q, const HeadRows& k,
                                             const HeadRows& v, const HeadRows& out,
                                             const float* log_sum, const HeadRows& grad_out,
                                             const LinearAttentionGradientsOut& gradients,
                                             void* workspace, cudaStream_t stream) {
  const FeatureParts f = feature_parts(s, features);
  if (!f.valid || linear_attention_chunk(s) % s.block != 0 || s.tokens % s.block != 0)
    return cudaErrorInvalidValue;
  const Workspace space(s, f, workspace);
  LinearBackwardArguments a = {};
  a.q = q, a.k = k, a.v = v, a.g = grad_out;
  a.grad_q = gradients.q, a.grad_k = gradients.k, a.grad_v = gradients.v;
  a.part_q = space.q, a.part_k = space.k, a.part_v = space.v;
  a.log_sum = log_sum, a.e = space.e;
  a.features = f.table;
  a.z = features.z, a.log_alpha = features.log_alpha;
  a.u = features.u, a.norm_weight = features.norm_weight;
  a.grad_directions = space.grad_directions, a.grad_log_alpha = space.grad_log_alpha;
  a.grad_norm = features.u == nullptr ? nullptr : space.grad_norm;
  a.heads = static_cast<int>(s.heads), a.group = static_cast<int>(s.heads / s.key_heads);
  a.tokens = static_cast<int>(s.tokens), a.width = static_cast<int>(s.width);
  a.total = static_cast<int>(f.total), a.block = static_cast<int>(s.block);
  const FeatureScales scales = feature_scales(s.width, features.subtract_norm);
  a.inner_scale = scales.inner, a.norm_scale = scales.norm;
  a.packed = in_packs(q, s.element, s.width) && in_packs(k, s.element, s.width) &&
             in_packs(v, s.element, s.width) && in_packs(grad_out, s.element, s.width);
  a.packed_q = in_packs(gradients.q, s.element, s.width);
  a.packed_k = in_packs(gradients.k, s.element, s.width);
  a.packed_v = in_packs(gradients.v, s.element, s.width);

  const PartShape rows = {s.element, s.batch, s.heads, f.count, s.tokens, s.width};
  cudaError_t status = launch_row_dots(rows, grad_out, out, space.e, stream);
  const auto then = [&](cudaError_t next) { status = next; };
  if (status == cudaSuccess)
    then(s.element == Element::kF32 ? launch_sweeps<float>(s, a, f.count, stream)
                                    : launch_sweeps<__nv_bfloat16>(s, a, f.count, stream));
  const int parts = static_cast<int>(2 * s.batch);
  const auto sum = [&](const float* from, int64_t size, float* to) {
    if (status == cudaSuccess)
      then(launch(add_up, dim3(blocks_for(size, 128)), 128, 0, stream, from, parts, size, to));
  };
  const auto sum_groups = [&](const float* from, int side, int sides, int64_t width, float* to) {
    FeatureTable table = f.table;
    int64_t size = f.own * width;
    if (to == gradients.u) table.sharing = 1, size = f.total * width;  // every query head its own
    if (status == cudaSuccess)
      then(launch(add_up_groups, dim3(blocks_for(size, 128)), 128, 0, stream, from,
                  static_cast<int>(s.batch), side, sides, table, static_cast<int>(width), size,
                  to));
  };
  if (features.u == nullptr) {
    sum(space.grad_directions, f.total * s.width, gradients.z);
    sum(space.grad_log_alpha, f.total, gradients.log_alpha);
  } else {
    sum_groups(space.grad_directions, 0, 1, s.width, gradients.u);
    sum_groups(space.grad_directions, 1, 1, s.width, gradients.z);
    sum_groups(space.grad_log_alpha, 0, 2, 1, gradients.log_alpha);
    if (status == cudaSuccess)
      then(launch(add_up_norms, dim3(1), static_cast<int>(s.key_heads), 0, stream, space.grad_norm,
                  static_cast<int>(s.batch), static_cast<int>(f.count), f.parts,
                  static_cast<int>(f.table.sharing), gradients.norm_weight));
  }
  if (status == cudaSuccess && space.q != nullptr)
    then(launch_sum_parts(rows, f.parts, space.q, gradients.q, stream));
  if (status == cudaSuccess && space.k != nullptr) {
    PartTable shared_by;  // parts of all query heads that share a key head
    for (int64_t h = 0; h <= s.key_heads; ++h) shared_by.first[h] = f.parts.first[h * a.group];
    PartShape key_rows = rows;
    key_rows.heads = s.key_heads;
    then(launch_sum_parts(key_rows, shared_by, space.k, gradients.k, stream));
    if (status == cudaSuccess)
      then(launch_sum_parts(key_rows, shared_by, space.v, gradients.v, stream));
  }
  return status;
}

}  // namespace dofla::cuda
