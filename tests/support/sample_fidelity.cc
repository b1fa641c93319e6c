#include "tests/support/sample_fidelity.h"

#include <cmath>
#include <limits>

namespace dofla::test {
namespace {

Divergence some_divergence(double kl) {
  Divergence d;
  d.tokens = 8176, d.windows = 16;
  d.teacher_loss = 3.25, d.loss = 3.25 + 1.1 * kl, d.added_stderr = kl / 15;
  d.kl = kl, d.kl_stderr = kl / 20;
  d.kl_median = kl / 4, d.kl_90 = 2 * kl, d.kl_95 = 4 * kl, d.kl_99 = 9 * kl, d.kl_999 = 30 * kl;
  d.kl_max = 60 * kl;
  d.p_change = -kl / 10, d.p_change_rms = kl / 3;
  d.same_top = 1 - std::min(kl, 0.9), d.top5_overlap = 1 - std::min(kl, 0.8) / 2;
  d.entropy_change = kl / 7;
  for (Calibration* of : {&d.calibration, &d.teacher_calibration}) {
    of->bins.resize(Calibration::kBins);
    for (size_t i = 0; i < of->bins.size(); ++i)
      of->bins[i] = {100, 0.05 + 0.1 * static_cast<double>(i), 0.09 * static_cast<double>(i + 1)};
    of->error = kl / 12;
  }
  return d;
}

std::vector<Slice> some_slices(double kl) {
  return {{"2 to 4", 4, 48, kl / 2, kl / 2, 0.01},
          {"5 to 8", 8, 64, kl, kl, 0.02},
          {"9 to 16", 16, 128, 1.5 * kl, kl, 0.97}};
}

StudentFidelity some_student(const std::string& name, const std::string& kind, double kl) {
  StudentFidelity student = {.name = name, .kind = kind};
  for (const bool in_domain : {true, false}) {
    TextFidelity text = {.name = in_domain ? "wiki" : "news",
                         .in_domain = in_domain,
                         .divergence = some_divergence(in_domain ? kl : 3 * kl),
                         .where = {some_slices(kl), some_slices(kl), some_slices(kl)}};
    text.controls = {
        .controls = {.measured = {{ControlKind::kWindow, 80, 499'200, 3.31}}, .left_out = {}},
        .windows = 4,
        .student_loss = 3.3,
        .teacher_loss = 3.25};
    student.texts.push_back(text);
  }
  student.all = some_divergence(2 * kl);
  student.where = student.texts.front().where;
  student.layer_error = {kl, 2 * kl, kl / 2};
  student.head_error = {{kl, kl}, {3 * kl, kl}, {kl / 2, 0}};
  student.worst.assign(5, {.text = "news",
                           .window = 3,
                           .position = 211,
                           .kl = 7.3,
                           .context = " the river flows to the",
                           .next = " sea",
                           .teacher_p = 0.9,
                           .student_p = 0.01,
                           .teacher = {{" sea", 0.9}, {" lake", 0.05}},
                           .student = {{"\n", 0.4}, {" town", 0.3}}});
  student.cost = {.bytes = {500'700, 500'700, 500'700},
                  .context_bytes = 500'700,
                  .timed_tokens = 512,
                  .prefill = 12'000,
                  .decode = 900};
  student.abilities.recall.recall = {{128, 50, 20, 3, 0.2}};
  student.abilities.continuations = {{1, 2, 3}};
  student.agreement = {.prompts = 1, .tokens = 3, .median = 2, .mean = 2, .equal = 0};
  return student;
}

ModelConfig some_config() {
  ModelConfig config;
  config.layers = 6, config.kv_heads = 4, config.head_size = 64;
  return config;
}

}  // namespace

FidelityReport plain_fidelity() {
  FidelityReport report = {.teacher = "models/wiki-mini", .window_tokens = 512};
  report.teacher_cost = {.bytes = {6'144'000, 196'608'000, 6'144'000'000},
                         .context_bytes = 3'145'728,
                         .grows = true,
                         .timed_tokens = 512,
                         .prefill = 11'000,
                         .decode = 1000};
  report.teacher_abilities.recall.recall = {{128, 50, 45, 2, 0.2}};
  report.teacher_abilities.continuations = {{1, 2, 4}};
  report.yardsticks = {
      {"8 bits", {some_divergence(0.001), some_divergence(0.002)}, some_divergence(0.0015)},
      {"4 bits", {some_divergence(0.2), some_divergence(0.25)}, some_divergence(0.22)}};
  report.students = {some_student("out/linear", "linear", 0.4),
                     some_student("out/hybrid", "hybrid", 0.008)};
  for (StudentFidelity& student : report.students)
    student.verdict = verdict_of(student, report, some_config());
  return report;
}

FidelityReport hostile_fidelity() {
  const std::string evil =
      "<script>alert(1)</script>\"'&\x01\xff\xc3(\n</bdi><img src=x onerror=alert(2)>";
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  FidelityReport report = plain_fidelity();
  report.teacher = evil;
  report.left_out = {evil};
  report.yardsticks[0].name = evil;
  report.yardsticks[0].texts[0].kl = nan;
  for (StudentFidelity& student : report.students) {
    student.name += evil;
    student.all.kl_999 = inf;
    student.head_error[0][0] = nan;
    student.layer_error[1] = inf;
    student.cost.prefill = inf;
    for (TextFidelity& text : student.texts) {
      text.name += evil;
      text.divergence.kl = nan;
      text.divergence.kl_stderr = inf;
      text.controls.controls.left_out = {evil};
    }
    for (Slice& slice : student.where.by_distance) slice.name += evil;
    for (WorstPassage& passage : student.worst) {
      passage.text = passage.context = passage.next = evil;
      passage.teacher[0].text = evil;
      passage.teacher[0].p = nan;
    }
    student.verdict = verdict_of(student, report, some_config());
  }
  return report;
}

}  // namespace dofla::test
