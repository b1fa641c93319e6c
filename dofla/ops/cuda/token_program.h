// A token program as a list of stages for one launch.
#pragma once

#include <vector>

#include "dofla/ops/cuda/stage_list.h"
#include "dofla/ops/token_program.h"

namespace dofla::cuda {

class StageProgram : public TokenProgram {
 public:
  explicit StageProgram(const Device& gpu);

  Tensor embed(const Tensor& tokens, const Tensor& positions) override;
  Tensor dense(const Tensor& x, const Dense& layer, std::optional<DType> result) override;
  void place_heads(const Placement& placement) override;
  Tensor linear_attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                               const Features& features, LinearAttentionState& state) override;
  Tensor hybrid_attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                               const Features& features, const ExactKeys& exact,
                               HybridAttentionState& state) override;
  Tensor softmax_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, Tensor& cache_k,
                                Tensor& cache_v) override;
  bool finish() override;
  void run(int64_t id, int64_t position) override;

 private:
  Tensor new_row(int64_t count);
  Tensor kept(const Tensor& x);
  // Entries for the stages, on the GPU.
  template <class Entry>
  const Entry* table_of(const std::vector<Entry>& entries) {
    const auto bytes = static_cast<int64_t>(entries.size() * sizeof(Entry));
    Tensor table({bytes}, DType::kU8, gpu_);
    copy_bytes(Device(), entries.data(), gpu_, table.mutable_raw(), bytes);
    return static_cast<const Entry*>(kept(table).raw());
  }
  HeadRows row_heads(const Tensor& view, int64_t attending);
  AttentionStage attention_of(const Tensor& q, const Tensor& k, const Tensor& v, int64_t attending,
                              const Tensor& y);
  void add_features(const Features& features, LinearAttentionState& state, AttentionStage& stage);
  Tensor attend_keys(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
                     const std::vector<KeyHeadPlace>& places, HybridStage stage,
                     HybridAttentionState& state);

  Device gpu_;
  int blocks_;
  bool fits_;
  Placement placement_ = {};  // of the heads that the next attention takes
  std::vector<Stage> stages_;
  std::vector<Tensor> memory_;  // that the stages speak of
  bool any_features_ = false;   // of the stages
  StageList list_ = {};
  uint32_t tag_ = 0;
};

}  // namespace dofla::cuda
