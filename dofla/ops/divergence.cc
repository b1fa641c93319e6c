#include "dofla/ops/divergence.h"

namespace dofla {
namespace {

const DivergenceBackend& divergence_backend(const Device& device) {
  return device.is_cuda() ? cuda::kDivergence : cpu::kDivergence;
}

}  // namespace

std::vector<TokenStatistics> token_statistics(const Tensor& teacher, const Tensor& student,
                                              const Tensor& targets) {
  require(teacher.rank() == 2 && teacher.size(1) > 0,
          "token statistics: expected logits [R, V], found {}", to_string(teacher.shape()));
  require_shape(student, teacher.shape(), "token statistics: student");
  require_shape(targets, {teacher.size(0)}, "token statistics: targets");
  for (int64_t i = 0; i < targets.count(); ++i) {
    const int64_t id = targets.data<int64_t>()[i];
    require(id >= 0 && id < teacher.size(1),
            "token statistics: target {} outside the vocabulary of {}", id, teacher.size(1));
  }
  return divergence_backend(teacher.device()).token_statistics(teacher, student, targets);
}

std::vector<OutputError> head_errors(const Tensor& teacher, const Tensor& student) {
  require(teacher.rank() == 4, "head errors: expected [B, T, H, D], found {}",
          to_string(teacher.shape()));
  require_shape(student, teacher.shape(), "head errors: student");
  require(student.dtype() == teacher.dtype(), "head errors: {} and {}", name(teacher.dtype()),
          name(student.dtype()));
  return divergence_backend(teacher.device()).head_errors(teacher, student);
}

}  // namespace dofla
