#include "dofla/evaluate/token_divergence.h"

#include <algorithm>

namespace dofla {

Divergence token_divergence(const Transformer& teacher, const Tensor& teacher_out,
                            const Transformer& student, const Tensor& student_out,
                            const Tensor& ids) {
  constexpr int64_t kRows = 64;  // logits of so many tokens exist at a time
  const int64_t tokens = ids.size(1);
  const Tensor a = teacher_out.reshape({tokens, teacher.config().width});
  const Tensor b = student_out.reshape({tokens, student.config().width});
  const Tensor targets = ids.reshape({tokens}).slice(1, tokens);
  Divergence sum;
  for (int64_t begin = 0; begin + 1 < tokens; begin += kRows) {
    const int64_t end = std::min(begin + kRows, tokens - 1);
    sum.add(divergence(teacher.logits(a.slice(begin, end)), student.logits(b.slice(begin, end)),
                       targets.slice(begin, end)));
  }
  return sum;
}

}  // namespace dofla
