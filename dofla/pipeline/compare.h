// Comparison of students' folders with their teacher's: what is loaded and measured.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dofla/checkpoint/checkpoint.h"
#include "dofla/fidelity/fidelity.h"

namespace dofla {

// What students and teacher are compared on.
struct CompareInput {
  std::vector<TextToCompare> texts = {};  // one or more
  AbilityQuestions questions = {};
  std::vector<std::string> left_out = {};  // what is not asked, and why
  // Of every student the names of those texts that it was trained on; or none at all.
  std::vector<std::vector<std::string>> trained_on = {};
};

// Where prompts come from: the beginning of ordinary text, at most so many tokens of it.
using RunningText = std::function<TokenIds(int64_t most_tokens)>;

// The teacher with its weights rounded to 8 and to 4 bits is the yardstick. Throws as
// measure_fidelity(), and Error if a folder changes meanwhile. All ranks;
// the report of the first is whole.
FidelityReport compare_models(const Checkpoint& teacher,
                              const std::vector<const Checkpoint*>& students,
                              const CompareInput& input, FidelitySuite suite, const Device& device,
                              const Progress& progress = {}, const Group& group = {});

}  // namespace dofla
