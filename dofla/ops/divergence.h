// How far a student is from its teacher: in its distribution of every next token, and in what the
// heads of a layer give. docs/fidelity.md defines the numbers.
#pragma once

#include <vector>

#include "dofla/core/tensor.h"

namespace dofla {

// What two models say of one next token. Losses, divergence and entropies in nats.
struct TokenStatistics {
  static constexpr int kTop = 5;  // the likeliest tokens that are looked at

  double teacher_loss = 0;  // −log p of the token that comes
  double student_loss = 0;
  double kl = 0;  // KL(teacher ‖ student)
  double teacher_entropy = 0;
  double student_entropy = 0;
  double teacher_top_p = 0;  // the probability of its own likeliest token
  double student_top_p = 0;
  int64_t teacher_top = 0;  // that token; of equally likely ones the first
  int64_t student_top = 0;
  int64_t shared_top = 0;  // how many of the kTop likeliest tokens both have
  int64_t target = 0;      // the token that comes

  bool same_top() const { return teacher_top == student_top; }
  bool teacher_right() const { return teacher_top == target; }
  bool student_right() const { return student_top == target; }
};

// One a row.
std::vector<TokenStatistics> token_statistics(const Tensor& teacher,   // logits [R, V], F32
                                              const Tensor& student,   // logits [R, V], F32
                                              const Tensor& targets);  // [R], I64

// Squared norms, which can be added up: of the teacher's numbers, and of the student's difference
// from them.
struct OutputError {
  double signal = 0;
  double error = 0;

  void add(const OutputError& other) {
    signal += other.signal;
    error += other.error;
  }
};

// One a head.
std::vector<OutputError> head_errors(const Tensor& teacher,   // [B, T, H, D], F32, on a GPU or BF16
                                     const Tensor& student);  // of the same shape and type

// What a device has to implement; ops/divergence.cc checks the arguments and picks the device.
struct DivergenceBackend {
  decltype(&dofla::token_statistics) token_statistics;
  decltype(&dofla::head_errors) head_errors;
};
namespace cpu {
extern const DivergenceBackend kDivergence;
}
namespace cuda {
extern const DivergenceBackend kDivergence;
}

}  // namespace dofla
