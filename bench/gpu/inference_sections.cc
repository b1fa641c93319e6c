// The teacher's forward, and the student's prefill and decoding.
#include "bench/gpu/operations.h"
#include "bench/gpu/sections.h"
#include "bench/support/bench_model.h"
#include "dofla/linear/linear_model.h"

namespace dofla::bench {
namespace {

AttentionShape shape_of(const Workload& work) {
  return attention_shape(work.teacher.config(), kTokens, kFeatures);
}

}  // namespace

void teacher_section(const Workload& work, Figures& figures) {
  const double batch = milliseconds(work.gpu, 10, [&] { work.teacher.forward(work.ids); });
  figures.add({.name = "teacher_forward",
               .milliseconds = batch / kBatch,
               .per = "sample",
               .operations = dense_operations(work.teacher, kTokens) +
                             softmax_attention_operations(shape_of(work))});
}

void prefill_section(const Workload& work, Figures& figures) {
  const Transformer student = make_linear_model(work.checkpoint, random_features(work), work.gpu);
  const double batch = milliseconds(work.gpu, 10, [&] { student.forward(work.ids); });
  figures.add({.name = "linear_prefill",
               .milliseconds = batch / kBatch,
               .per = "sample",
               .operations = dense_operations(student, kTokens) +
                             linear_attention_operations(shape_of(work))});
}

void decode_section(const Workload& work, Figures& figures) {
  const Transformer student = make_linear_model(work.checkpoint, random_features(work), work.gpu);
  const Tensor id = some_ids(1, student.config().vocabulary);
  constexpr int64_t kSteps = 100;
  DecodeState state;
  const double steps = milliseconds(work.gpu, 3, [&] {
    state = student.new_state();
    for (int64_t i = 0; i < kSteps; ++i) {
      const Tensor hidden = student.forward(id, {.state = &state, .observer = {}});
      student.logits(hidden.reshape({1, student.config().width}));
    }
  });
  figures.add({.name = "linear_decode",
               .milliseconds = steps / kSteps,
               .per = "token",
               .operations = dense_operations(student, 1) + head_operations(student, 1),
               .bytes = weight_bytes(student) + 2 * static_cast<double>(state.bytes())});
}

}  // namespace dofla::bench
