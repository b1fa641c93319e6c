// The sequences that decode together. Their states lie in one place with room for more: joining
// copies one sequence into it, leaving moves the last one, and the others stay where they are. On a
// GPU the number of rows is rounded up, so that a few recorded steps serve every number of
// sequences; those beyond the last are computed and never looked at.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "dofla/generate/decoder.h"

namespace dofla {

class Batch {
 public:
  Batch(const Transformer& model, int64_t most);

  int64_t size() const { return size_; }
  int64_t bytes() const { return states_.bytes(); }  // with the room for more

  // Copies a state of one sequence, which is number size() from now on.
  void join(const DecodeState& one);
  // The last sequence gets this number.
  void leave(int64_t index);
  void clear();
  // An independent copy, without room for more tokens.
  DecodeState copy(int64_t index) const;

  // Reads one token of every sequence: the logits of what follows, on the model's device until the
  // next step. On a GPU there may be rows beyond the last sequence.
  Tensor step(const std::vector<int64_t>& ids);  // B -> [B or more, V], F32

 private:
  void place(int64_t index, int64_t tokens);
  void make_room(int64_t sequences, int64_t tokens);
  Tensor step_on_cpu(const std::vector<int64_t>& ids);
  Tensor step_on_gpu(std::vector<int64_t> ids);

  const Transformer& model_;
  int64_t most_;
  bool grows_;          // whether states do
  DecodeState states_;  // of room_ sequences
  int64_t size_ = 0, room_ = 0;
  int64_t capacity_ = 0;                                  // tokens of a sequence that fit
  std::map<int64_t, std::unique_ptr<Decoder>> decoders_;  // on a GPU, by rows
};

}  // namespace dofla
