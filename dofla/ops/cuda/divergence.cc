#include "dofla/ops/divergence.h"

#include "dofla/ops/cuda/cross_entropy_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

std::vector<TokenStatistics> token_statistics(const Tensor& teacher, const Tensor& student,
                                              const Tensor& targets) {
  const int64_t rows = teacher.size(0);
  const Tensor there = targets.to(teacher.device());
  Tensor each({rows, kTokenNumbers}, DType::kF64, teacher.device());
  cuda_check(launch_token_statistics(floats(teacher), floats(student), rows, teacher.size(1),
                                     static_cast<const int64_t*>(there.raw()),
                                     static_cast<double*>(each.mutable_raw()), stream_of(teacher)),
             "token statistics");
  const Tensor here = each.to(Device());
  std::vector<TokenStatistics> result;
  result.reserve(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    const double* row = here.data<double>() + kTokenNumbers * r;
    result.push_back({.teacher_loss = row[0],
                      .student_loss = row[1],
                      .kl = row[2],
                      .teacher_entropy = row[3],
                      .student_entropy = row[4],
                      .teacher_top_p = row[5],
                      .student_top_p = row[6],
                      .teacher_top = static_cast<int64_t>(row[7]),
                      .student_top = static_cast<int64_t>(row[8]),
                      .shared_top = static_cast<int64_t>(row[9]),
                      .target = targets.data<int64_t>()[r]});
  }
  return result;
}

std::vector<OutputError> head_errors(const Tensor& teacher, const Tensor& student) {
  const int64_t rows = teacher.size(0) * teacher.size(1), heads = teacher.size(2);
  Tensor parts({heads, kOutputSums, 2}, DType::kF64, teacher.device());
  cuda_check(launch_head_errors(element_of(teacher), rows, heads, teacher.size(3), teacher.raw(),
                                student.raw(), static_cast<double*>(parts.mutable_raw()),
                                stream_of(teacher)),
             "head errors");
  const Tensor here = parts.to(Device());
  std::vector<OutputError> sums(static_cast<size_t>(heads));
  for (int64_t i = 0; i < heads * kOutputSums; ++i)
    sums[static_cast<size_t>(i / kOutputSums)].add(
        {here.data<double>()[2 * i], here.data<double>()[2 * i + 1]});
  return sums;
}

}  // namespace

const DivergenceBackend kDivergence = {.token_statistics = token_statistics,
                                       .head_errors = head_errors};

}  // namespace dofla::cuda
