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
  // Adds --keys, --window, --sinks, --recent, --policy and --block, none of them beside `excluded`,
  // the first two not beside `memory`, which says how many keys there can be, where there is such
  // an option. `leaving` says what becomes of the keys that leave.
  void add(CLI::App& app, const char* leaving, CLI::Option* memory = nullptr,
           const std::vector<CLI::Option*>& excluded = {});

  bool given() const { return keys_ || window_; }
  // With --memory without their number. Throws UsageError on options that have no meaning without
  // --keys, --window or --memory.
  std::optional<ExactKeys> value() const;

 private:
  std::optional<int64_t> keys_, window_, sinks_, recent_, block_;
  std::optional<KeyPolicy> policy_;
  const CLI::Option* memory_ = nullptr;
};

// The layers that keep their softmax attention: --keep and --keep-count.
class KeepOption {
 public:
  void add(CLI::App& app, CLI::Option* plan, CLI::Option* start);

  std::vector<int64_t> layers() const;  // counted from 0
  int64_t count() const { return count_; }

 private:
  std::vector<int64_t> layers_;
  int64_t count_ = 0;
};

}  // namespace dofla::cli
