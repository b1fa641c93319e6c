// The options that say which keys layers keep exact, and which layers keep their softmax attention.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "dofla/ops/exact_keys.h"

namespace dofla::cli {

class ExactKeysOption {
 public:
  // Adds --keys, --window, --sinks, --recent, --policy and --block, none of them beside `excluded`.
  // `leaving` says what becomes of the keys that leave.
  void add(CLI::App& app, const std::vector<CLI::Option*>& excluded, const char* leaving);
  void add_keep(CLI::App& app, CLI::Option* excluded);  // --keep

  bool given() const { return keys_ || window_; }
  // Throws UsageError on options that have no meaning without --keys or --window.
  std::optional<ExactKeys> value() const;
  std::vector<int64_t> keep() const;  // layers, counted from 0

 private:
  std::optional<int64_t> keys_, window_, sinks_, recent_, block_;
  std::optional<KeyPolicy> policy_;
  std::vector<int64_t> keep_;
};

}  // namespace dofla::cli
