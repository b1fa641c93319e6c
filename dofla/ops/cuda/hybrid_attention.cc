#include "dofla/ops/hybrid_attention.h"

#include "dofla/ops/cuda/head_tensors.h"
#include "dofla/ops/cuda/hybrid_attention_kernels.h"
#include "dofla/ops/cuda/linear_attention_tensors.h"

namespace dofla::cuda {
namespace {

MergeShape shape_of(const Tensor& q, const Tensor& left_out, const std::vector<int64_t>& first) {
  MergeShape shape = {element_of(q), q.size(0), q.size(1),        std::ssize(first),
                      q.size(2),     q.size(3), left_out.size(1), {}};
  require(shape.key_heads <= kMostKeyHeads, "hybrid attention: {} key heads, a GPU takes {}",
          shape.key_heads, kMostKeyHeads);
  for (size_t h = 0; h < first.size(); ++h) shape.first[h] = static_cast<int32_t>(first[h]);
  return shape;
}

void merge(const Tensor& q, const Tensor& left_out, const Tensor& left_log_sum,
           const std::vector<int64_t>& first, Tensor& out, Tensor& log_sum) {
  cuda_check(launch_merge_left(shape_of(q, left_out, first), heads_of(q), token_heads_of(left_out),
                               floats(left_log_sum), token_heads_of(out), mutable_floats(log_sum),
                               stream_of(q)),
             "hybrid attention");
}

void merge_backward(const Tensor& q, const Tensor& left_out, const Tensor& out,
                    const Tensor& log_sum, const Tensor& grad_out,
                    const std::vector<int64_t>& first, Tensor& left_log_sum, Tensor& grad_q) {
  cuda_check(launch_merge_left_backward(
                 shape_of(q, left_out, first), heads_of(q), token_heads_of(left_out),
                 token_heads_of(out), floats(log_sum), token_heads_of(grad_out),
                 mutable_floats(left_log_sum), heads_of(grad_q), stream_of(q)),
             "hybrid attention backward");
}

CachePlaces places_of(const ExactKeys& exact, int64_t key_heads, int64_t group) {
  require(key_heads <= kMostKeyHeads, "hybrid attention: {} key heads, a GPU takes {}", key_heads,
          kMostKeyHeads);
  CachePlaces places = {};
  places.total = static_cast<int32_t>(exact.total_keys(key_heads));
  const std::vector<HeadCache> caches = head_caches(exact, key_heads, 0, 0);
  for (size_t h = 0; h < caches.size(); ++h) {
    places.limit[h] = static_cast<int32_t>(caches[h].limit);
    places.first[h] = static_cast<int32_t>(caches[h].first);
    places.first_score[h] = first_score(exact.with_keys(caches[h].limit), group);
  }
  return places;
}

Tensor step(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
            const ExactKeys& exact, HybridAttentionState& state, const Tensor& past) {
  Tensor out({q.size(0), 1, q.size(1), q.size(3)}, q.dtype(), q.device());
  const LinearAttentionShape shape = {element_of(q), q.size(0), q.size(1), k.size(1), 1, q.size(3)};
  LinearAttentionFeatures on_gpu = {};
  LinearAttentionSums sums = {};
  if (!features.empty()) {
    on_gpu = kernel_features(features);
    sums = sums_of(state.left);
  }
  const ExactCache cache = {state.k.mutable_raw(),
                            state.v.mutable_raw(),
                            mutable_floats(state.score),
                            places_of(exact, k.size(1), q.size(1) / k.size(1)),
                            exact.block,
                            exact.sinks,
                            exact.recent,
                            exact.decay,
                            exact.policy == KeyPolicy::kAttended};
  cuda_check(
      launch_hybrid_attention_step(shape, on_gpu, cache, integers(past), heads_of(q), heads_of(k),
                                   heads_of(v), sums, token_heads_of(out), stream_of(q)),
      "hybrid attention");
  return out;
}

}  // namespace

const HybridAttentionBackend kHybridAttention = {merge, merge_backward, step};

}  // namespace dofla::cuda
