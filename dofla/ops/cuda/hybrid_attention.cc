#include "dofla/ops/hybrid_attention.h"

#include "dofla/ops/cuda/head_tensors.h"
#include "dofla/ops/cuda/hybrid_attention_kernels.h"
#include "dofla/ops/cuda/linear_attention_tensors.h"

namespace dofla::cuda {
namespace {

MergeShape shape_of(const Tensor& q, const Tensor& left_out, int64_t first) {
  return {element_of(q), q.size(0), q.size(1), q.size(2), q.size(3), first, left_out.size(1)};
}

void merge(const Tensor& q, const Tensor& left_out, const Tensor& left_log_sum, int64_t first,
           Tensor& out, Tensor& log_sum) {
  cuda_check(launch_merge_left(shape_of(q, left_out, first), heads_of(q), token_heads_of(left_out),
                               floats(left_log_sum), token_heads_of(out), mutable_floats(log_sum),
                               stream_of(q)),
             "hybrid attention");
}

void merge_backward(const Tensor& q, const Tensor& left_out, const Tensor& out,
                    const Tensor& log_sum, const Tensor& grad_out, int64_t first,
                    Tensor& left_log_sum, Tensor& grad_q) {
  cuda_check(launch_merge_left_backward(
                 shape_of(q, left_out, first), heads_of(q), token_heads_of(left_out),
                 token_heads_of(out), floats(log_sum), token_heads_of(grad_out),
                 mutable_floats(left_log_sum), heads_of(grad_q), stream_of(q)),
             "hybrid attention backward");
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
                            exact.keys,
                            exact.block,
                            exact.sinks,
                            exact.newest(),
                            exact.decay,
                            first_score(exact, q.size(1) / k.size(1)),
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
