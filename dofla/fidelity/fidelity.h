// A student beside its teacher in every respect that matters before it takes its place: how far it
// is, where that is lost, what it has to beat, what it costs, and a verdict. docs/fidelity.md says
// what the numbers mean.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dofla/core/names.h"
#include "dofla/evaluate/controls.h"
#include "dofla/fidelity/abilities.h"
#include "dofla/fidelity/compare.h"
#include "dofla/fidelity/cost.h"
#include "dofla/fidelity/verdict.h"
#include "dofla/fidelity/where_lost.h"

namespace dofla {

enum class FidelitySuite { kQuick, kFull };

template <>
struct Names<FidelitySuite> {
  static constexpr std::string_view kWhat = "suite";
  static constexpr std::array kAll = {Name{FidelitySuite::kQuick, "quick"},
                                      Name{FidelitySuite::kFull, "full"}};
};

// How much is measured.
struct FidelityOptions {
  int64_t control_windows = 0;  // of every text that the controls read
  size_t worst = 20;            // passages that are shown
  int cost_rounds = 1;
};
int64_t windows_of(FidelitySuite suite);  // of every text
FidelityOptions options_of(FidelitySuite suite);

struct ModelToCompare {
  std::string name;     // as the user named it
  Transformer* model;   // its attention is exchanged for the controls meanwhile
  FeatureSet features;  // without layers for a softmax model
  std::vector<std::string> trained_on = {};  // the names of those texts that it was trained on
};

struct TextToCompare {
  std::string name;
  bool in_domain = false;
  std::vector<TokenIds> windows;  // equally long
};

struct TextControls {
  Controls controls = {};
  int64_t windows = 0;                        // the first so many of the text
  double student_loss = 0, teacher_loss = 0;  // on these
};

struct TextFidelity {
  std::string name;
  bool in_domain = false;
  bool trained_on = false;  // by the student
  Divergence divergence;
  WhereLost where;
  TextControls controls = {};
};

struct StudentFidelity {
  std::string name;
  std::string kind;  // "hybrid", "linear" or "softmax"
  std::vector<TextFidelity> texts = {};
  Divergence all = {};                   // of all texts together, every token alike
  WhereLost where = {};                  // likewise
  std::vector<double> layer_error = {};  // relative, over all texts
  std::vector<std::vector<double>> head_error = {};
  std::vector<WorstPassage> worst = {};
  Cost cost = {};
  Abilities abilities = {};
  std::optional<Agreement> agreement = {};  // with what its teacher writes
  Verdict verdict = {};

  bool is_softmax() const { return kind == "softmax"; }  // a control beside the others
};

// The teacher with its weights rounded: how far everybody knows that to be.
struct Yardstick {
  std::string name;  // "8 bits"
  std::vector<Divergence> texts = {};
  Divergence all = {};
};

struct FidelityReport {
  std::string teacher;
  Cost teacher_cost = {};
  Abilities teacher_abilities = {};
  std::vector<Yardstick> yardsticks = {};  // from close to far
  std::vector<std::string> left_out = {};  // what was not measured, and why
  int64_t window_tokens = 0;
  std::vector<StudentFidelity> students = {};
};

struct FidelityInput {
  ModelToCompare teacher;
  std::vector<ModelToCompare> students;    // one or more
  std::vector<ModelToCompare> yardsticks;  // from close to far
  std::vector<TextToCompare> texts;        // one or more
  AbilityQuestions questions;
};

// Throws Error if a student has another vocabulary, naming it; NotFinite if a loss is not finite.
// Ranks share the texts and the questions; the first one measures the costs, and only its report
// has them.
FidelityReport measure_fidelity(const FidelityInput& input, const Tokenizer& tokenizer,
                                const FidelityOptions& options, const Progress& progress = {},
                                const Group& group = {});

// From everything else that is known of a student and, of the report, of its teacher, the
// yardsticks and the softmax models among the students.
Verdict verdict_of(const StudentFidelity& student, const FidelityReport& report,
                   const ModelConfig& teacher);

}  // namespace dofla
