#include "dofla/ops/attention_tape.h"

namespace dofla {

void require_tape(const AttentionTape& tape, const Tensor& q) {
  const int64_t batch = q.size(0), heads = q.size(1), tokens = q.size(2), width = q.size(3);
  if (tape.out.defined())
    require_shape(tape.out, {batch, tokens, heads, width}, "attention backward: tape out");
  if (!tape.log_sum.defined()) return;
  require(tape.out.defined(), "attention backward: the tape has log sums but no output");
  require_shape(tape.log_sum, {batch, heads, tokens}, "attention backward: tape log sums");
}

}  // namespace dofla
