// The teacher's forward, and the student's prefill and decoding.
#include <vector>

#include <fmt/format.h>

#include "bench/gpu/sections.h"
#include "dofla/generate/decoder.h"
#include "dofla/linear/linear_model.h"
#include "dofla/model/operations.h"

namespace dofla::bench {
namespace {

constexpr int64_t kDecoded = 512;  // tokens that sequences have where a cache grows with them

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

namespace {

// Steps of so many sequences side by side, with logits.
Figure decode_figure(const Workload& work, const Transformer& model, int64_t batch, int64_t steps) {
  const ModelConfig& config = model.config();
  const std::vector<int64_t> ids(static_cast<size_t>(batch), 11);
  Decoder decoder(model, model.new_state(), batch, kDecoded);
  const double time = milliseconds(work.gpu, 3, [&] {
    decoder.set_positions(std::vector<int64_t>(ids.size(), kDecoded - steps));
    for (int64_t i = 0; i < steps; ++i) decoder.step(ids);
  });
  double read = 0, written = 0;  // of states
  for (int64_t i = 0; i < config.layers; ++i) {
    if (const Features* features = model.attention(i).features()) {
      const LinearAttentionState state = new_linear_attention_state(batch, *features);
      read += static_cast<double>(state.bytes()), written += static_cast<double>(state.bytes());
    } else {  // keys and values, in bf16
      read += 4.0 * static_cast<double>(batch * kDecoded * config.kv_heads * config.head_size);
    }
  }
  return {.name = {},
          .milliseconds = time / static_cast<double>(steps),
          .per = "token",
          .operations = static_cast<double>(batch) *
                        (dense_operations(config, 1) + head_operations(config, 1)),
          .bytes = decoded_bytes(config) + read + written};
}

}  // namespace

void decode_section(const Workload& work, Figures& figures) {
  const Transformer student = make_linear_model(work.checkpoint, random_features(work), work.gpu);
  const auto add = [&](const char* kind, const Transformer& model, int64_t batch, int64_t steps) {
    Figure figure = decode_figure(work, model, batch, steps);
    figure.name = batch == 1 ? kind : fmt::format("{}_{}", kind, batch);
    figures.add(figure);
  };
  for (const int64_t batch : {1, 16, 32, 64, 256, 1024})
    add("linear_decode", student, batch, batch > 64 ? 20 : 100);
  for (const int64_t batch : {16, 64, 256}) add("softmax_decode", work.teacher, batch, 20);
}

}  // namespace dofla::bench
