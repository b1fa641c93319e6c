#include "dofla/ops/divergence.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/vector_rows.h"

namespace dofla::cpu {
namespace {

constexpr int kTop = TokenStatistics::kTop;

// The places of the largest numbers, largest first, of equal ones the first; −1 where there are no
// more.
std::array<int64_t, kTop> largest_places(const float* x, int64_t count) {
  std::array<int64_t, kTop> places;
  places.fill(-1);
  float least = -std::numeric_limits<float>::infinity();  // of those that are kept, once all are
  for (int64_t i = 0; i < count; ++i) {
    if (i >= kTop && !(x[i] > least)) continue;
    int at = kTop - 1;
    for (; at > 0 && (places[at - 1] < 0 || x[i] > x[places[at - 1]]); --at)
      places[at] = places[at - 1];
    places[at] = i;
    if (places[kTop - 1] >= 0) least = x[places[kTop - 1]];
  }
  return places;
}

TokenStatistics compare_row(const float* teacher, const float* student, int64_t target,
                            int64_t count) {
  // log p and log p̂, then p and p̂.
  std::vector<float> log_p(teacher, teacher + count), log_q(student, student + count), p(log_p), q;
  add_constant(-log_sum_exp(teacher, count), count, log_p.data());
  add_constant(-log_sum_exp(student, count), count, log_q.data());
  q = log_q;
  exp_shifted(log_p.data(), 0, count, p.data());
  exp_shifted(log_q.data(), 0, count, q.data());
  const auto top = largest_places(teacher, count), top_student = largest_places(student, count);
  TokenStatistics row;
  row.target = target;
  row.teacher_loss = -double{log_p[static_cast<size_t>(target)]};
  row.student_loss = -double{log_q[static_cast<size_t>(target)]};
  row.teacher_entropy = -double{dot(p.data(), log_p.data(), count)};
  row.student_entropy = -double{dot(q.data(), log_q.data(), count)};
  row.teacher_top = top[0];
  row.student_top = top_student[0];
  row.teacher_top_p = p[static_cast<size_t>(top[0])];
  row.student_top_p = q[static_cast<size_t>(top_student[0])];
  for (const int64_t place : top)
    row.shared_top += place >= 0 && std::ranges::find(top_student, place) != top_student.end();
  // Σ p (log p − log p̂); rounding can take it a little below 0, where it cannot be.
  add_scaled(log_q.data(), -1, count, log_p.data());
  const double kl = dot(p.data(), log_p.data(), count);
  row.kl = kl < 0 ? 0 : kl;
  return row;
}

std::vector<TokenStatistics> token_statistics(const Tensor& teacher, const Tensor& student,
                                              const Tensor& targets) {
  const int64_t rows = teacher.size(0), count = teacher.size(1);
  std::vector<TokenStatistics> each(static_cast<size_t>(rows));
  parallel_for(rows, [&](int64_t r) {
    each[static_cast<size_t>(r)] =
        compare_row(teacher.data<float>() + r * count, student.data<float>() + r * count,
                    targets.data<int64_t>()[r], count);
  });
  return each;
}

std::vector<OutputError> head_errors(const Tensor& teacher, const Tensor& student) {
  const int64_t rows = teacher.size(0) * teacher.size(1), heads = teacher.size(2),
                size = teacher.size(3);
  const float *wanted = teacher.data<float>(), *found = student.data<float>();
  // A head is summed by one thread, so that the bits do not depend on how many there are.
  std::vector<OutputError> sums(static_cast<size_t>(heads));
  parallel_for(heads, [&](int64_t head) {
    OutputError sum;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = (r * heads + head) * size; i < (r * heads + head + 1) * size; ++i) {
        const double off = double{found[i]} - wanted[i];
        sum.signal += double{wanted[i]} * wanted[i];
        sum.error += off * off;
      }
    sums[static_cast<size_t>(head)] = sum;
  });
  return sums;
}

}  // namespace

const DivergenceBackend kDivergence = {.token_statistics = token_statistics,
                                       .head_errors = head_errors};

}  // namespace dofla::cpu
