// The texts of dofla compare: --texts, --in-domain, --length, --windows, --token-cache.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "dofla/pipeline/compare.h"

namespace dofla::cli {

class CompareTexts {
 public:
  void add(CLI::App& app);
  std::string first_file() const { return named_files().front().file; }
  void check() const { named_files(); }  // throws UsageError on names that cannot be

  // The whole windows of every text, for the first of these models' tokenizer and as long as all of
  // them can read; what is in domain is marked, and what of it the others were trained on.
  // `otherwise` is the number of windows where none is said.
  CompareInput read(const std::vector<const Checkpoint*>& models, int64_t otherwise,
                    const Progress& progress) const;

 private:
  struct NamedFile {
    std::string name, file;
  };
  std::vector<NamedFile> named_files() const;

  std::vector<std::string> texts_, in_domain_;
  int64_t length_ = 0;   // 0: the shortest context
  int64_t windows_ = 0;  // 0: as the suite has it
  std::string token_cache_;
};

}  // namespace dofla::cli
