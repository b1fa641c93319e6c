// One token of one sequence through a whole decoder in a single launch of a GPU. The steps are
// written down once and then run for every token.
#pragma once

#include <memory>
#include <optional>

#include "dofla/ops/dense.h"
#include "dofla/ops/heads.h"
#include "dofla/ops/hybrid_attention.h"
#include "dofla/ops/linear_attention.h"

namespace dofla {

// Nothing is computed before run(): what a step returns stands for its numbers in the steps that
// follow, and only the result of a `dense` of a given type can be read. All tensors and states that
// the steps are given must live as long as the program.
class TokenProgram {
 public:
  virtual ~TokenProgram() = default;

  virtual Tensor embed(const Tensor& tokens, const Tensor& positions) = 0;  // -> [1, C]
  virtual Tensor dense(const Tensor& x, const Dense& layer,
                       std::optional<DType> result = std::nullopt) = 0;  // [1, K] -> [1, N]
  // Of the queries and keys of the attention that follows.
  virtual void place_heads(const Placement& placement) = 0;
  // With q, k and v views of the results of `dense`.
  virtual Tensor linear_attention_step(const Tensor& q,  // [1, H, 1, D]
                                       const Tensor& k,  // [1, Hkv, 1, D]
                                       const Tensor& v,  // [1, Hkv, 1, D]
                                       const Features& features,
                                       LinearAttentionState& state) = 0;  // -> [1, H·D]
  virtual Tensor hybrid_attention_step(const Tensor& q,                   // [1, H, 1, D]
                                       const Tensor& k,                   // [1, Hkv, 1, D]
                                       const Tensor& v,                   // [1, Hkv, 1, D]
                                       const Features& features, const ExactKeys& exact,
                                       HybridAttentionState& state) = 0;  // -> [1, H·D]
  // With space in the cache for all tokens that will be run.
  virtual Tensor softmax_attention_step(const Tensor& q,       // [1, H, 1, D]
                                        const Tensor& k,       // [1, Hkv, 1, D]
                                        const Tensor& v,       // [1, Hkv, 1, D]
                                        Tensor& cache_k,       // [1, Hkv, capacity, D]
                                        Tensor& cache_v) = 0;  // -> [1, H·D]

  // After the last step: whether the device can run them so. It takes a Hopper; BF16 weights [N, K]
  // with whole packs of eight inputs, no more than 8192, or 2048 behind a norm; heads that consist
  // of fours of coordinates and turn in fours; beside a cache heads of eights, which at most eight
  // query heads share, and a cache that leaves room for weights in a multiprocessor.
  virtual bool finish() = 0;
  // Ids and positions lie in their tables: that is not checked.
  virtual void run(int64_t id, int64_t position) = 0;
};

// Null where there are none: not on a GPU.
std::unique_ptr<TokenProgram> token_program(const Device& device);

struct TokenProgramBackend {
  std::unique_ptr<TokenProgram> (*make)(const Device& gpu);
};
namespace cuda {
extern const TokenProgramBackend kTokenProgram;
}  // namespace cuda

}  // namespace dofla
