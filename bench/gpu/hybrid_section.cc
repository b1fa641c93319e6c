// What exact keys cost beside features: every figure of a student with features alone, of the same
// with 64 exact keys, and with as many on average where key heads hold different numbers; and what
// their teacher takes for a token.
#include <array>
#include <string>

#include <fmt/format.h>

#include "bench/gpu/sections.h"
#include "dofla/distill/direct_objective.h"
#include "dofla/distill/train.h"
#include "dofla/generate/decoder.h"
#include "dofla/linear/linear_model.h"

namespace dofla::bench {
namespace {

constexpr int64_t kKeys = 64;
constexpr int64_t kSequences = 32;  // that decode side by side

double step(const Workload& work, const FeatureSet& features, const Objective& objective) {
  FeatureTrainer trainer(features.clone(), objective,
                         {.steps = 1000, .lr_z = 0.01, .lr_alpha = 0.01});
  return milliseconds(work.gpu, 5, [&] { trainer.step(work.ids); }) / kBatch;
}

// A token of so many sequences that have filled their caches.
double decode(const Workload& work, const Transformer& student, int64_t sequences) {
  constexpr int64_t kSteps = 128;
  const std::vector<int64_t> ids(static_cast<size_t>(sequences), 11);
  Decoder decoder(student, student.new_state(), sequences);
  return milliseconds(work.gpu, 3,
                      [&] {
                        for (int64_t i = 0; i < kSteps; ++i) decoder.step(ids);
                      }) /
         kSteps;
}

// A token of the teacher after 1,000 others, which it sees again and again.
double decode_teacher(const Workload& work) {
  constexpr int64_t kPast = 1000, kSteps = 16;
  Decoder decoder(work.teacher, work.teacher.new_state(), 1, kPast + kSteps);
  return milliseconds(work.gpu, 20,
                      [&] {
                        decoder.set_positions({kPast});
                        for (int64_t i = 0; i < kSteps; ++i) decoder.step({11});
                      }) /
         kSteps;
}

}  // namespace

void hybrid_section(const Workload& work, Figures& figures) {
  FeatureSet features = random_features(work);
  for (Features& layer : features.layers) layer = untie(layer.to({}), layer.heads()).to(work.gpu);
  features.map = FeatureMap::kUntied;
  FeatureSet hybrid = features;
  hybrid.exact.assign(features.layers.size(), ExactKeys{.keys = kKeys});
  FeatureSet by_head = hybrid;
  for (ExactKeys& exact : by_head.exact) {
    constexpr std::array<int64_t, 4> kByHead = {24, 32, 56, 144};  // 64 on average
    for (int64_t h = 0; h < work.checkpoint.config().kv_heads; ++h)
      exact.head_keys.push_back(kByHead[static_cast<size_t>(h % 4)]);
    exact.keys = 144;
  }
  for (const auto& [name, set] :
       {std::pair("untied", &features), {"hybrid", &hybrid}, {"by_head", &by_head}}) {
    const auto add = [&](const char* what, double time, const char* per) {
      figures.add({.name = fmt::format("{}_{}", name, what), .milliseconds = time, .per = per});
    };
    add("layerwise_softmax",
        step(work, *set, layerwise_objective(work.teacher, FeatureLossOptions())), "sample");
    add("direct_step", step(work, *set, direct_objective(work.checkpoint, work.teacher)), "sample");
    const Transformer student = make_linear_model(work.checkpoint, *set, work.gpu);
    add("prefill", milliseconds(work.gpu, 10, [&] { student.forward(work.ids); }) / kBatch,
        "sample");
    add("decode", decode(work, student, 1), "token");
    add("decode_32", decode(work, student, kSequences), "token");
  }
  figures.add(
      {.name = "softmax_decode_1000", .milliseconds = decode_teacher(work), .per = "token"});
}

}  // namespace dofla::bench
