// What dofla compare asks beside its texts: numbers that stood in a prompt, and with --last-words
// and --tasks words and answers.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "dofla/pipeline/compare.h"

namespace dofla::cli {

class CompareQuestions {
 public:
  void add(CLI::App& app);

  // As many as the suite asks. `text` is ordinary text for the prompts; where it is too short for
  // them, or the tokenizer cannot write them, they are left out, and that is said.
  AbilityQuestions read(const Checkpoint& teacher, const Tokenizer& tokenizer,
                        const RunningText& text, FidelitySuite suite,
                        std::vector<std::string>& left_out) const;

 private:
  std::string last_words_, tasks_;
};

}  // namespace dofla::cli
