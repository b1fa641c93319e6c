#include "dofla/ops/divergence.h"

#include "dofla/ops/cuda/cross_entropy_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

Divergence divergence(const Tensor& teacher, const Tensor& student, const Tensor& targets) {
  const int64_t rows = teacher.size(0);
  const Tensor there = targets.to(teacher.device());
  Tensor each({rows, 4}, DType::kF64, teacher.device());
  cuda_check(launch_divergence_rows(floats(teacher), floats(student), rows, teacher.size(1),
                                    static_cast<const int64_t*>(there.raw()),
                                    static_cast<double*>(each.mutable_raw()), stream_of(teacher)),
             "divergence");
  const Tensor here = each.to(Device());
  Divergence sum;
  for (int64_t r = 0; r < rows; ++r) {
    const double* row = here.data<double>() + 4 * r;
    sum.teacher_loss += row[0];
    sum.student_loss += row[1];
    sum.kl += row[2];
    sum.agree += row[3] != 0;
  }
  return sum;
}

OutputError output_error(const Tensor& teacher, const Tensor& student) {
  Tensor parts({kOutputSums, 2}, DType::kF64, teacher.device());
  cuda_check(
      launch_output_errors(element_of(teacher), teacher.count(), teacher.raw(), student.raw(),
                           static_cast<double*>(parts.mutable_raw()), stream_of(teacher)),
      "output error");
  const Tensor here = parts.to(Device());
  OutputError sum;
  for (int64_t i = 0; i < kOutputSums; ++i) {
    sum.signal += here.data<double>()[2 * i];
    sum.error += here.data<double>()[2 * i + 1];
  }
  return sum;
}

}  // namespace

const DivergenceBackend kDivergence = {.divergence = divergence, .output_error = output_error};

}  // namespace dofla::cuda
