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
  bool finish() override;
  void run(int64_t id, int64_t position) override;

 private:
  Tensor new_row(int64_t count);
  Tensor kept(const Tensor& x);
  HeadRows row_heads(const Tensor& view, int64_t attending);

  Device gpu_;
  int blocks_;
  bool fits_;
  Placement placement_ = {};  // of the heads that the next attention takes
  std::vector<Stage> stages_;
  std::vector<Tensor> memory_;  // that the stages speak of
  Tensor on_gpu_;               // the stages
  StageList list_ = {};
  uint32_t tag_ = 0;
};

}  // namespace dofla::cuda
