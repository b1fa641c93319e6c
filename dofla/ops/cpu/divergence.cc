#include "dofla/ops/divergence.h"

#include <algorithm>
#include <vector>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/vector_rows.h"

namespace dofla::cpu {
namespace {

Divergence compare_row(const float* teacher, const float* student, int64_t target, int64_t count) {
  const float teacher_lse = log_sum_exp(teacher, count);
  const float student_lse = log_sum_exp(student, count);
  std::vector<float> probability(teacher, teacher + count);
  exp_and_sum(teacher_lse, count, probability.data());
  std::vector<float> difference(teacher, teacher + count);
  add_scaled(student, -1, count, difference.data());
  // Σ p (log p − log p̂); rounding can take it a little below 0, where it cannot be.
  const double kl =
      double{dot(probability.data(), difference.data(), count)} - teacher_lse + double{student_lse};
  return {.teacher_loss = double{teacher_lse} - teacher[target],
          .student_loss = double{student_lse} - student[target],
          .kl = std::max(kl, 0.0),
          .agree = std::max_element(teacher, teacher + count) - teacher ==
                   std::max_element(student, student + count) - student};
}

Divergence divergence(const Tensor& teacher, const Tensor& student, const Tensor& targets) {
  const int64_t rows = teacher.size(0), count = teacher.size(1);
  std::vector<Divergence> each(static_cast<size_t>(rows));
  parallel_for(rows, [&](int64_t r) {
    each[static_cast<size_t>(r)] =
        compare_row(teacher.data<float>() + r * count, student.data<float>() + r * count,
                    targets.data<int64_t>()[r], count);
  });
  Divergence sum;
  for (const Divergence& row : each) sum.add(row);
  return sum;
}

OutputError output_error(const Tensor& teacher, const Tensor& student) {
  // Summed by one thread, so that the bits do not depend on how many there are.
  constexpr int64_t kStretch = 4096;
  const int64_t count = teacher.count(), stretches = (count + kStretch - 1) / kStretch;
  const float *wanted = teacher.data<float>(), *found = student.data<float>();
  std::vector<OutputError> parts(static_cast<size_t>(stretches));
  parallel_for(stretches, [&](int64_t part) {
    OutputError sum;
    for (int64_t i = part * kStretch; i < std::min(count, (part + 1) * kStretch); ++i) {
      const double off = double{found[i]} - wanted[i];
      sum.signal += double{wanted[i]} * wanted[i];
      sum.error += off * off;
    }
    parts[static_cast<size_t>(part)] = sum;
  });
  OutputError sum;
  for (const OutputError& part : parts) sum.add(part);
  return sum;
}

}  // namespace

const DivergenceBackend kDivergence = {.divergence = divergence, .output_error = output_error};

}  // namespace dofla::cpu
