// As in softmax_attention_backward_kernels.cu: with P the probabilities, g the gradient of the
// output and e_i = g_i·out_i, a logit's gradient is P_ij (g_i·v_j − e_i). A query is in one
// segment, and its gradient is that segment's. A key is in the segments from the one that it came
// in to the one that it left in: each writes its part, and a last kernel adds them up in order.
#include <utility>

#include "dofla/ops/cuda/attention_parts.h"
#include "dofla/ops/cuda/exact_segment_gradients.cuh"
#include "dofla/ops/cuda/launch.cuh"

namespace dofla::cuda {
namespace {

template <class T, int kWidth>
cudaError_t launch_segments(const ExactKeysShape& s, const ExactBackwardArguments& a,
                            cudaStream_t stream) {
  using Tiling = GradientTiling<T, kWidth>;
  const cudaError_t status =
      launch(exact_segment_gradients<T, kWidth>, grid_of(s, 1), 32 * Tiling::kWarps,
             Tiling::kSharedBytes + position_bytes(s), stream, a);
  if (status != cudaSuccess) return status;
  const dim3 grid(blocks_for(s.keys * (kWidth / Pack<T>::kSize), kSumThreads),
                  static_cast<unsigned>(s.batch * s.key_heads));
  return launch(sum_key_parts<T, kWidth>, grid, kSumThreads, 0, stream, a);
}

// Rows of the parts of a head.
int64_t part_rows(const ExactKeysShape& s, const KeyCache& cache) {
  return ExactBackwardArguments::rows_until_full(cache, static_cast<int>(s.queries)) +
         cache.rounds * (cache.limit - s.block + kTokensTogether);
}

// What lies in the workspace, each from a multiple of 16 bytes on.
struct Workspace {
  int64_t rows = 0, part_width, part_bytes, sum_bytes, e_bytes;

  explicit Workspace(const ExactKeysShape& s) {
    const int64_t bytes = s.element == Element::kF32 ? 4 : 2;
    const int tile_keys =
        bytes == 4 ? GradientTiling<float, 32>::kKeys : GradientTiling<__nv_bfloat16, 32>::kKeys;
    for (int64_t h = 0; h < s.key_heads; ++h) rows += part_rows(s, s.cache[h]);
    part_width = (s.width + 7) / 8 * 8;
    part_bytes = s.batch * rows * part_width * bytes;
    const bool one_tile = s.most_held() - s.block + kTokensTogether <= tile_keys;
    sum_bytes = one_tile ? 0 : s.batch * s.heads * s.queries * part_width * 4;
    e_bytes = (s.batch * s.heads * s.queries * 4 + 15) / 16 * 16;
  }
  int64_t all_bytes(const ExactKeysShape& s) const {
    return 2 * part_bytes + sum_bytes + e_bytes + s.batch * rows * 4;
  }
};

}  // namespace

int64_t exact_attention_backward_workspace_bytes(const ExactKeysShape& s) {
  return Workspace(s).all_bytes(s);
}

cudaError_t launch_exact_attention_backward(const ExactKeysShape& s, const HeadRows& q,
                                            const HeadRows& k, const HeadRows& v,
                                            const KeptKeys& kept, const HeadRows& out,
                                            const float* log_sum, const HeadRows& grad_out,
                                            const ExactAttentionGradientsOut& gradients,
                                            void* workspace, cudaStream_t stream) {
  if (!valid(s) || s.queries != s.keys) return cudaErrorInvalidValue;
  ExactBackwardArguments a = {};
  a.q = q, a.k = k, a.v = v, a.g = grad_out;
  a.grad_q = gradients.q, a.grad_k = gradients.k, a.grad_v = gradients.v;
  a.segments = segments_of(s, kept);
  a.key_heads = static_cast<int>(s.key_heads), a.group = static_cast<int>(s.heads / s.key_heads);
  a.tokens = static_cast<int>(s.queries), a.width = static_cast<int>(s.width);
  for (int64_t h = 0; h < s.key_heads; ++h) {
    a.first_row[h] = static_cast<int32_t>(a.rows);
    a.rows += part_rows(s, s.cache[h]);
  }
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.width)));
  a.packed = in_packs(q, s.element, s.width) && in_packs(k, s.element, s.width) &&
             in_packs(v, s.element, s.width) && in_packs(grad_out, s.element, s.width);
  a.packed_q = in_packs(gradients.q, s.element, s.width);
  a.packed_keys =
      in_packs(gradients.k, s.element, s.width) && in_packs(gradients.v, s.element, s.width);
  const Workspace sizes(s);
  char* at = static_cast<char*>(workspace);
  const auto take = [&](int64_t bytes) { return std::exchange(at, at + bytes); };
  a.part_width = static_cast<int>(sizes.part_width);
  a.part_k = take(sizes.part_bytes), a.part_v = take(sizes.part_bytes);
  a.sums_q = reinterpret_cast<float*>(take(sizes.sum_bytes));
  float* e = reinterpret_cast<float*>(take(sizes.e_bytes));
  a.next = reinterpret_cast<int32_t*>(at);
  a.log_sum = log_sum, a.e = e;
  const cudaError_t status = launch_row_dots(
      {s.element, s.batch, s.heads, s.heads, s.queries, s.width}, grad_out, out, e, stream);
  if (status != cudaSuccess) return status;
  return with_width(s.width, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    return s.element == Element::kF32 ? launch_segments<float, kWidth>(s, a, stream)
                                      : launch_segments<__nv_bfloat16, kWidth>(s, a, stream);
  });
}

}  // namespace dofla::cuda
