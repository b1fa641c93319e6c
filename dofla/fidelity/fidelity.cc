#include "dofla/fidelity/fidelity.h"

#include <algorithm>

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

// The controls on the first windows of a text, beside the student on these.
TextControls measure_controls(const ModelToCompare& teacher, const ModelToCompare& student,
                              const TextToCompare& text, const Compared& compared,
                              int64_t most_windows, const Progress& progress, const Group& group) {
  const auto count = std::min(static_cast<size_t>(most_windows), text.windows.size());
  const std::vector<TokenIds> windows(text.windows.begin(),
                                      text.windows.begin() + static_cast<std::ptrdiff_t>(count));
  const Divergence here = divergence_of(std::span(compared.windows).first(count));
  TextControls result = {.windows = static_cast<int64_t>(count),
                         .student_loss = here.loss,
                         .teacher_loss = here.teacher_loss};
  if (!student.features.layers.empty())
    result.controls = evaluate_controls(*student.model, *teacher.model, student.features,
                                        each_of(windows), here.tokens, progress, group);
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

// The same of a yardstick, of which less is wanted.
Yardstick summed_up(const ModelToCompare& yardstick, const std::vector<Compared>& compared) {
  Yardstick result = {.name = yardstick.name};
  std::vector<WindowStatistics> all;
  for (const Compared& text : compared) {
    result.texts.push_back(divergence_of(text.windows));
    all.insert(all.end(), text.windows.begin(), text.windows.end());
  }
  result.all = divergence_of(all);
  return result;
}

// Students and yardsticks on every text: by model, then by text.
std::vector<std::vector<Compared>> compare_all(const FidelityInput& input, const Progress& progress,
                                               const Group& group) {
  std::vector<const Transformer*> models;
  for (const ModelToCompare& student : input.students) models.push_back(student.model);
  for (const ModelToCompare& yardstick : input.yardsticks) models.push_back(yardstick.model);
  std::vector<std::vector<Compared>> compared(models.size());
  for (const TextToCompare& text : input.texts) {
    int64_t tokens = 0;
    for (const TokenIds& window : text.windows) tokens += std::ssize(window) - 1;
    std::vector<Compared> here =
        compare(*input.teacher.model, models, each_of(text.windows), tokens, progress, group);
    for (size_t m = 0; m < models.size(); ++m) compared[m].push_back(std::move(here[m]));
  }
  return compared;
}

}  // namespace

int64_t windows_of(FidelitySuite suite) {
  return suite == FidelitySuite::kQuick ? 16 : 100;
}

FidelityOptions options_of(FidelitySuite suite) {
  return suite == FidelitySuite::kQuick ? FidelityOptions{.control_windows = 4, .cost_rounds = 1}
                                        : FidelityOptions{.control_windows = 32, .cost_rounds = 3};
}

FidelityReport measure_fidelity(const FidelityInput& input, const Tokenizer& tokenizer,
                                const FidelityOptions& options, const Progress& progress,
                                const Group& group) {
  require_comparable(input.teacher, input.students, input.texts);
  const ModelToCompare& teacher = input.teacher;
  const std::vector<ModelToCompare>& students = input.students;
  const std::vector<TextToCompare>& texts = input.texts;
  const std::vector<std::vector<Compared>> compared = compare_all(input, progress, group);
  FidelityReport result = {.teacher = teacher.name,
                           .window_tokens = std::ssize(texts.front().windows.front())};
  for (size_t y = 0; y < input.yardsticks.size(); ++y)
    result.yardsticks.push_back(summed_up(input.yardsticks[y], compared[students.size() + y]));
  int64_t timed = std::min(kTimedTokens, teacher.model->config().context);
  for (const ModelToCompare& student : students)
    timed = std::min(timed, student.model->config().context);
  // Times of a rank that works alone: those of several at once would be neither of one nor of all.
  const auto cost = [&](const ModelToCompare& of) {
    group.wait();
    if (!group.is_first()) return Cost{};
    return measure_cost(*of.model, of.features, texts.front().windows, timed, options.cost_rounds);
  };
  result.teacher_cost = cost(teacher);
  result.teacher_abilities =
      measure_abilities(*teacher.model, tokenizer, input.questions, progress, group);
  for (size_t s = 0; s < students.size(); ++s) {
    StudentFidelity student = summed_up(students[s], texts, compared[s]);
    for (size_t t = 0; t < texts.size(); ++t)
      student.texts[t].controls = measure_controls(teacher, students[s], texts[t], compared[s][t],
                                                   options.control_windows, progress, group);
    student.worst = worst_passages(teacher, students[s], texts, compared[s], tokenizer,
                                   options.worst, progress);
    student.cost = cost(students[s]);
    student.abilities =
        measure_abilities(*students[s].model, tokenizer, input.questions, progress, group);
    if (!student.abilities.continuations.empty())
      student.agreement =
          agreement(result.teacher_abilities.continuations, student.abilities.continuations);
    result.students.push_back(std::move(student));
  }
  for (StudentFidelity& student : result.students)
    student.verdict = verdict_of(student, result, teacher.model->config());
  return result;
}

}  // namespace dofla
