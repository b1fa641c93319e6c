#include "dofla/ops/divergence.h"

#include "dofla/ops/cpu/divergence.h"
#include "dofla/ops/cuda/divergence.h"

namespace dofla {

Divergence divergence(const Tensor& teacher, const Tensor& student, const Tensor& targets) {
  require(teacher.rank() == 2 && teacher.size(1) > 0,
          "divergence: expected logits [R, V], found {}", to_string(teacher.shape()));
  require_shape(student, teacher.shape(), "divergence: student");
  require_shape(targets, {teacher.size(0)}, "divergence: targets");
  for (int64_t i = 0; i < targets.count(); ++i) {
    const int64_t id = targets.data<int64_t>()[i];
    require(id >= 0 && id < teacher.size(1), "divergence: target {} outside the vocabulary of {}",
            id, teacher.size(1));
  }
  return teacher.device().is_cuda() ? cuda::divergence(teacher, student, targets)
                                    : cpu::divergence(teacher, student, targets);
}

OutputError output_error(const Tensor& teacher, const Tensor& student) {
  require_shape(student, teacher.shape(), "output error: student");
  require(student.dtype() == teacher.dtype(), "output error: {} and {}", name(teacher.dtype()),
          name(student.dtype()));
  return teacher.device().is_cuda() ? cuda::output_error(teacher, student)
                                    : cpu::output_error(teacher, student);
}

}  // namespace dofla
