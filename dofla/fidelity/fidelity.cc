#include "dofla/fidelity/fidelity.h"

#include <algorithm>

#include "dofla/core/bytes.h"
#include "dofla/core/error.h"

namespace dofla {
namespace {

constexpr int64_t kTimedTokens = 1024;  // or the context, where that is shorter

void require_comparable(const ModelToCompare& teacher, const std::vector<ModelToCompare>& students,
                        const std::vector<TextToCompare>& texts) {
  require(!students.empty() && !texts.empty(), "fidelity: {} students and {} texts",
          students.size(), texts.size());
  const int64_t vocabulary = teacher.model->config().vocabulary;
  for (const ModelToCompare& student : students)
    if (const int64_t found = student.model->config().vocabulary; found != vocabulary)
      fail("{}: a vocabulary of {}, that of the teacher {} has {}: they cannot be compared",
           student.name, found, teacher.name, vocabulary);
}

std::string kind_of(const FeatureSet& features) {
  if (features.layers.empty()) return "softmax";
  const bool exact =
      std::ranges::any_of(features.exact, [](const ExactKeys& keys) { return !keys.empty(); });
  const bool linear =
      std::ranges::any_of(features.layers, [](const Features& layer) { return !layer.empty(); });
  return exact && linear ? "hybrid" : exact ? "exact keys" : "linear";
}

std::vector<int64_t> predicted(const std::vector<TextToCompare>& texts) {
  std::vector<int64_t> tokens;
  for (const TextToCompare& text : texts) {
    tokens.push_back(0);
    for (const TokenIds& window : text.windows) tokens.back() += std::ssize(window) - 1;
  }
  return tokens;
}

// The controls on the first windows of a text, beside the student on these.
TextControls measure_controls(const ModelToCompare& teacher, const ModelToCompare& student,
                              const TextToCompare& text, const Compared& compared,
                              int64_t most_windows, const Progress& progress) {
  const auto count = std::min(static_cast<size_t>(most_windows), text.windows.size());
  const std::vector<TokenIds> windows(text.windows.begin(),
                                      text.windows.begin() + static_cast<std::ptrdiff_t>(count));
  const Divergence here = divergence_of(std::span(compared.windows).first(count));
  TextControls result = {.windows = static_cast<int64_t>(count),
                         .student_loss = here.loss,
                         .teacher_loss = here.teacher_loss};
  if (!student.features.layers.empty())
    result.controls = evaluate_controls(*student.model, *teacher.model, student.features,
                                        each_of(windows), here.tokens, progress);
  return result;
}

// The worst tokens of all texts.
std::vector<WorstPassage> worst_passages(const ModelToCompare& teacher,
                                         const ModelToCompare& student,
                                         const std::vector<TextToCompare>& texts,
                                         const std::vector<Compared>& compared,
                                         const Tokenizer& tokenizer, size_t count,
                                         const Progress& progress) {
  std::vector<std::pair<size_t, TokenPlace>> places;  // the text, and where there
  for (size_t t = 0; t < texts.size(); ++t)
    for (const TokenPlace& place : worst_tokens(compared[t].windows, count))
      places.emplace_back(t, place);
  std::ranges::stable_sort(places,
                           [](const auto& a, const auto& b) { return a.second.kl > b.second.kl; });
  places.resize(std::min(places.size(), count));
  std::vector<WorstPassage> passages;
  for (const auto& [t, place] : places) {
    passages.push_back(worst_passage(*teacher.model, *student.model, tokenizer,
                                     texts[t].windows[place.window], place));
    passages.back().text = texts[t].name;
    report(progress, {"worst passages", std::ssize(passages), std::ssize(places), "passages"});
  }
  return passages;
}

// Everything that follows from what was compared token by token.
StudentFidelity summed_up(const ModelToCompare& student, const std::vector<TextToCompare>& texts,
                          const std::vector<Compared>& compared) {
  StudentFidelity result = {.name = student.name, .kind = kind_of(student.features)};
  Compared all = {.windows = {}, .heads = compared.front().heads};
  std::vector<TokenIds> ids;
  for (size_t t = 0; t < texts.size(); ++t) {
    const Compared& here = compared[t];
    result.texts.push_back({.name = texts[t].name,
                            .in_domain = texts[t].in_domain,
                            .trained_on = std::ranges::find(student.trained_on, texts[t].name) !=
                                          student.trained_on.end(),
                            .divergence = divergence_of(here.windows),
                            .where = where_lost(texts[t].windows, here.windows)});
    ids.insert(ids.end(), texts[t].windows.begin(), texts[t].windows.end());
    all.windows.insert(all.windows.end(), here.windows.begin(), here.windows.end());
    for (size_t layer = 0; t > 0 && layer < all.heads.size(); ++layer)
      for (size_t head = 0; head < all.heads[layer].size(); ++head)
        all.heads[layer][head].add(here.heads[layer][head]);
  }
  result.all = divergence_of(all.windows);
  result.where = where_lost(ids, all.windows);
  result.layer_error = layer_errors(all);
  for (const std::vector<OutputError>& layer : all.heads) {
    result.head_error.emplace_back();
    for (const OutputError& head : layer) result.head_error.back().push_back(relative(head));
  }
  return result;
}

Finding memory_finding(const Cost& cost, const ModelConfig& teacher) {
  if (cost.grows)
    return {.grade = {},
            .about = "memory",
            .words = fmt::format("{} at {} tokens, and grows with the sequence",
                                 with_bytes_unit(cost.bytes[1]), kCostLengths[1])};
  return {.grade = {},
          .about = "memory",
          .words = fmt::format("{} whatever the length; its teacher's cache is larger from {} "
                               "tokens on",
                               with_bytes_unit(cost.context_bytes),
                               tokens_in(teacher, cost.context_bytes))};
}

Verdict judge(const StudentFidelity& student, const ModelConfig& teacher) {
  std::vector<Finding> findings;
  for (const TextFidelity& text : student.texts)
    findings.push_back(text_finding(text.name, text.in_domain, text.divergence));
  for (const TextFidelity& text : student.texts)
    for (const std::string& note : notes(text.controls.controls, text.controls.student_loss))
      findings.push_back({.grade = {}, .about = text.name + ", controls", .words = note});
  findings.push_back(memory_finding(student.cost, teacher));
  return make_verdict(std::move(findings));
}

}  // namespace

int64_t windows_of(FidelitySuite suite) {
  return suite == FidelitySuite::kQuick ? 16 : 100;
}

FidelityOptions options_of(FidelitySuite suite) {
  return suite == FidelitySuite::kQuick ? FidelityOptions{.control_windows = 4, .cost_rounds = 1}
                                        : FidelityOptions{.control_windows = 32, .cost_rounds = 3};
}

FidelityReport measure_fidelity(const ModelToCompare& teacher,
                                const std::vector<ModelToCompare>& students,
                                const std::vector<TextToCompare>& texts, const Tokenizer& tokenizer,
                                const FidelityOptions& options, const Progress& progress) {
  require_comparable(teacher, students, texts);
  std::vector<const Transformer*> models;
  for (const ModelToCompare& student : students) models.push_back(student.model);
  const std::vector<int64_t> tokens = predicted(texts);
  std::vector<std::vector<Compared>> compared(students.size());  // by student, then by text
  for (size_t t = 0; t < texts.size(); ++t) {
    std::vector<Compared> here =
        compare(*teacher.model, models, each_of(texts[t].windows), tokens[t], progress);
    for (size_t s = 0; s < students.size(); ++s) compared[s].push_back(std::move(here[s]));
  }
  int64_t timed = std::min(kTimedTokens, teacher.model->config().context);
  for (const Transformer* model : models) timed = std::min(timed, model->config().context);
  FidelityReport result = {.teacher = teacher.name,
                           .window_tokens = std::ssize(texts.front().windows.front())};
  const auto cost = [&](const ModelToCompare& of) {
    return measure_cost(*of.model, of.features, texts.front().windows, timed, options.cost_rounds);
  };
  result.teacher_cost = cost(teacher);
  for (size_t s = 0; s < students.size(); ++s) {
    StudentFidelity student = summed_up(students[s], texts, compared[s]);
    for (size_t t = 0; t < texts.size(); ++t)
      student.texts[t].controls = measure_controls(teacher, students[s], texts[t], compared[s][t],
                                                   options.control_windows, progress);
    student.worst = worst_passages(teacher, students[s], texts, compared[s], tokenizer,
                                   options.worst, progress);
    student.cost = cost(students[s]);
    student.verdict = judge(student, teacher.model->config());
    result.students.push_back(std::move(student));
  }
  return result;
}

}  // namespace dofla
