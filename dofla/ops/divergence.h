// How far a student is from its teacher: in its distribution of the next token, and in what a layer
// gives.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla {

struct Divergence {
  double teacher_loss = 0;  // Σ over rows of −log softmax(teacher)[target], in nats
  double student_loss = 0;
  double kl = 0;      // Σ over rows of KL(teacher ‖ student), in nats
  int64_t agree = 0;  // rows whose most likely token is the same

  void add(const Divergence& other) {
    teacher_loss += other.teacher_loss;
    student_loss += other.student_loss;
    kl += other.kl;
    agree += other.agree;
  }
};

// Sums over rows, so that blocks of rows can be added up.
Divergence divergence(const Tensor& teacher,   // logits [R, V], F32
                      const Tensor& student,   // logits [R, V], F32
                      const Tensor& targets);  // [R], I64

// Squared norms, which can be added up too: of the teacher's numbers, and of the student's
// difference from them.
struct OutputError {
  double signal = 0;
  double error = 0;

  void add(const OutputError& other) {
    signal += other.signal;
    error += other.error;
  }
};

OutputError output_error(const Tensor& teacher,   // F32, on a GPU also BF16
                         const Tensor& student);  // of the same shape and type

// What a device has to implement; ops/divergence.cc checks the arguments and picks the device.
struct DivergenceBackend {
  decltype(&dofla::divergence) divergence;
  decltype(&dofla::output_error) output_error;
};
namespace cpu {
extern const DivergenceBackend kDivergence;
}
namespace cuda {
extern const DivergenceBackend kDivergence;
}

}  // namespace dofla
