#include "dofla/ops/divergence.h"

namespace dofla {
namespace {

const DivergenceBackend& backend(const Device& device) {
  return device.is_cuda() ? cuda::kDivergence : cpu::kDivergence;
}

}  // namespace

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
  return backend(teacher.device()).divergence(teacher, student, targets);
}

OutputError output_error(const Tensor& teacher, const Tensor& student) {
  require_shape(student, teacher.shape(), "output error: student");
  require(student.dtype() == teacher.dtype(), "output error: {} and {}", name(teacher.dtype()),
          name(student.dtype()));
  return backend(teacher.device()).output_error(teacher, student);
}

}  // namespace dofla
