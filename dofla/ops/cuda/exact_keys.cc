#include "dofla/ops/exact_keys.h"

#include "dofla/ops/cuda/exact_keys_kernels.h"
#include "dofla/ops/cuda/head_kernels.h"
#include "dofla/ops/cuda/head_tensors.h"

namespace dofla::cuda {
namespace {

// Kernels cannot include the contract.
static_assert(kTokensTogether == dofla::kTokensTogether && kStays == dofla::kStays);

ExactKeysShape shape_of(const Tensor& q, const Tensor& k, const ExactKeys& exact,
                        const std::vector<HeadCache>& caches) {
  ExactKeysShape shape = {element_of(q), q.size(0), q.size(1),   k.size(1), q.size(2),
                          k.size(2),     q.size(3), exact.block, {}};
  require(shape.key_heads <= kMostKeyHeads, "exact keys: {} key heads, a GPU takes at most {}",
          shape.key_heads, kMostKeyHeads);
  for (size_t h = 0; h < caches.size(); ++h) {
    const HeadCache& own = caches[h];
    const auto small = [](int64_t x) { return static_cast<int32_t>(x); };
    shape.cache[h] = {small(own.limit),
                      small(own.before),
                      small(own.times),
                      small(own.rounds()),
                      small(own.first_kept),
                      small(own.first),
                      first_score(exact.with_keys(own.limit), shape.heads / shape.key_heads)};
  }
  return shape;
}

int32_t* mutable_short_integers(Tensor& x) {
  return static_cast<int32_t*>(x.mutable_raw());
}

Tensor widened(const Tensor& heads) {
  Tensor out(heads.shape(), DType::kF32, heads.device());
  cuda_check(launch_widen_heads(
                 {element_of(heads), heads.size(0), heads.size(1), heads.size(2), heads.size(3)},
                 heads_of(heads), mutable_floats(out), stream_of(heads)),
             "exact keys in float32");
  return out;
}

Evictions evict(const Tensor& q, const Tensor& k, const ExactKeys& exact,
                const std::vector<HeadCache>& caches, const Tensor& score) {
  const ExactKeysShape shape = shape_of(q, k, exact, caches);
  // In BF16 a kernel chooses among keys in shared memory. In float32 it can read those of a cache
  // that is too large for that where they lie.
  if (q.dtype() == DType::kBF16 && !eviction_fits(shape))
    return evict(widened(q), widened(k), exact, caches, score);
  require(eviction_fits(shape),
          "exact keys: a GPU cannot choose among {} keys of head size {} in {}: give fewer",
          exact.keys, shape.width, name(q.dtype()));
  Evictions evictions = new_evictions(caches, shape.batch, exact.block, q.device());
  Tensor workspace({eviction_workspace_bytes(shape)}, DType::kU8, q.device());
  cuda_check(
      launch_evict_keys(
          shape, {exact.sinks, exact.recent, exact.decay}, heads_of(q), heads_of(k), floats(score),
          {mutable_short_integers(evictions.order), mutable_short_integers(evictions.leaves),
           mutable_short_integers(evictions.kept), mutable_short_integers(evictions.held),
           mutable_floats(evictions.score)},
          workspace.mutable_raw(), stream_of(q)),
      "choosing exact keys");
  return evictions;
}

Tensor exact_attention(const Tensor& q, const Tensor& k, const Tensor& v, const ExactKeys& exact,
                       const std::vector<HeadCache>& caches, const Evictions& evictions,
                       Tensor* log_sum) {
  Tensor out({q.size(0), q.size(2), q.size(1), q.size(3)}, q.dtype(), q.device());
  Tensor sums({q.size(0), q.size(1), q.size(2)}, DType::kF32, q.device());
  cuda_check(
      launch_exact_attention(shape_of(q, k, exact, caches), heads_of(q), heads_of(k), heads_of(v),
                             {short_integers(evictions.leaves), short_integers(evictions.kept)},
                             token_heads_of(out), mutable_floats(sums), stream_of(q)),
      "attention to exact keys");
  if (log_sum != nullptr) *log_sum = sums;
  return out;
}

ExactAttentionGradients exact_attention_backward(const Tensor& q, const Tensor& k, const Tensor& v,
                                                 const ExactKeys& exact,
                                                 const std::vector<HeadCache>& caches,
                                                 const Evictions& evictions, const Tensor& grad_out,
                                                 const AttentionTape& tape,
                                                 const GradientBuffers& given) {
  const GradientBuffers buffers = allocate_missing(given, q, k);
  ExactAttentionGradients gradients = {buffers.q, buffers.k, buffers.v};
  const ExactKeysShape shape = shape_of(q, k, exact, caches);
  Tensor workspace({exact_attention_backward_workspace_bytes(shape)}, DType::kU8, q.device());
  cuda_check(launch_exact_attention_backward(
                 shape, heads_of(q), heads_of(k), heads_of(v),
                 {short_integers(evictions.leaves), short_integers(evictions.kept)},
                 token_heads_of(tape.out), floats(tape.log_sum), token_heads_of(grad_out),
                 {heads_of(gradients.q), heads_of(gradients.k), heads_of(gradients.v)},
                 workspace.mutable_raw(), stream_of(q)),
             "attention to exact keys, backward");
  return gradients;
}

}  // namespace

const ExactKeysBackend kExactKeys = {evict, exact_attention, exact_attention_backward};

}  // namespace dofla::cuda
