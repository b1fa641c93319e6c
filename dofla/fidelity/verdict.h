// Where a student can replace its teacher and where not, in words. The thresholds stand in
// docs/fidelity.md, and here.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dofla/core/names.h"
#include "dofla/fidelity/divergence.h"

namespace dofla {

// From best to worst.
enum class Grade {
  kEqual,  // can replace its teacher
  kClose,  // can, where small differences do not matter
  kApart,  // differs noticeably
  kFar,    // is another model
};

template <>
struct Names<Grade> {
  static constexpr std::string_view kWhat = "grade";
  static constexpr std::array kAll = {Name{Grade::kEqual, "equal"}, Name{Grade::kClose, "close"},
                                      Name{Grade::kApart, "apart"}, Name{Grade::kFar, "far"}};
};

// A grade needs all three of them; what reaches none is kFar.
struct TextThreshold {
  Grade grade;
  double kl;        // at most, of the mean and two standard errors
  double kl_99;     // at most, of the 99th percentile
  double same_top;  // at least
};
inline constexpr std::array<TextThreshold, 3> kTextThresholds = {
    TextThreshold{Grade::kEqual, 0.01, 0.2, 0.95}, TextThreshold{Grade::kClose, 0.05, 1.0, 0.90},
    TextThreshold{Grade::kApart, 0.20, 4.0, 0.75}};

// Of what the teacher has above chance, the student keeps at least so much.
struct KeptThreshold {
  Grade grade;
  double kept;
};
inline constexpr std::array<KeptThreshold, 3> kKeptThresholds = {KeptThreshold{Grade::kEqual, 0.95},
                                                                 KeptThreshold{Grade::kClose, 0.85},
                                                                 KeptThreshold{Grade::kApart, 0.6}};
// A teacher that is not so far above chance, nor so many of its standard errors, says nothing of
// its students.
inline constexpr double kLeastAboveChance = 0.1;
inline constexpr double kLeastErrorsAboveChance = 3;

Grade grade_of(const Divergence& divergence);

// Of two shares of right answers; nothing if the teacher is too close to chance.
std::optional<Grade> grade_of_kept(double student, double teacher, double teacher_stderr,
                                   double chance);

struct Finding {
  std::optional<Grade> grade;  // nothing where there is nothing to grade
  std::string about;           // "wikipedia", "memory"
  std::string words;           // a sentence without its end
};

struct Verdict {
  Grade grade = Grade::kFar;      // the worst of the findings
  std::string headline;           // "can replace its teacher on wiki, not on news"
  std::vector<Finding> findings;  // what it was made from
};

std::string_view in_words(Grade grade);  // "can replace its teacher"

// What a text tells of a student.
Finding text_finding(const std::string& name, bool in_domain, const Divergence& divergence);

// The headline and the grade, from graded findings.
Verdict make_verdict(std::vector<Finding> findings);

}  // namespace dofla
