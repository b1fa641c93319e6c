// The teacher's forward, and the student's prefill and decoding.
#include <vector>

#include <fmt/format.h>

#include "bench/gpu/sections.h"
#include "dofla/generate/decoder.h"
#include "dofla/linear/linear_model.h"
#include "dofla/model/operations.h"

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
               .operations = dense_operations(work.teacher.config(), kTokens) +
                             softmax_attention_operations(shape_of(work))});
}

void prefill_section(const Workload& work, Figures& figures) {
  const Transformer student = make_linear_model(work.checkpoint, random_features(work), work.gpu);
  const double batch = milliseconds(work.gpu, 10, [&] { student.forward(work.ids); });
  figures.add({.name = "linear_prefill",
               .milliseconds = batch / kBatch,
               .per = "sample",
               .operations = dense_operations(student.config(), kTokens) +
                             linear_attention_operations(shape_of(work))});
}

// Steps of so many sequences side by side, with logits.
void decode_section(const Workload& work, Figures& figures) {
  const Transformer student = make_linear_model(work.checkpoint, random_features(work), work.gpu);
  constexpr int64_t kSteps = 100;
  for (const int64_t batch : {1, 64}) {
    const std::vector<int64_t> ids(static_cast<size_t>(batch), 11);
    Decoder decoder(student, student.new_state(), batch);
    const double steps = milliseconds(work.gpu, 3, [&] {
      for (int64_t i = 0; i < kSteps; ++i) decoder.step(ids);
    });
    double state = 0;
    for (int64_t i = 0; i < student.config().layers; ++i)
      state += static_cast<double>(
          new_linear_attention_state(batch, *student.attention(i).features()).bytes());
    figures.add({.name = batch == 1 ? "linear_decode" : fmt::format("linear_decode_{}", batch),
                 .milliseconds = steps / kSteps,
                 .per = "token",
                 .operations = static_cast<double>(batch) * (dense_operations(student.config(), 1) +
                                                             head_operations(student.config(), 1)),
                 .bytes = decoded_bytes(student.config()) + 2 * state});
  }
}

}  // namespace dofla::bench
