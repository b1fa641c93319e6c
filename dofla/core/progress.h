// How the library reports progress: it calls a function, and the caller displays it.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace dofla {

struct ProgressUpdate {
  std::string_view stage;  // "evaluate", "degrees of freedom", ...
  int64_t done = 0;
  int64_t total = 0;      // 0 when unknown
  std::string_view unit;  // "tokens", "heads", "steps"
};

// May be empty: check before the call, or use report().
using Progress = std::function<void(const ProgressUpdate&)>;

inline void report(const Progress& progress, const ProgressUpdate& update) {
  if (progress) progress(update);
}

}  // namespace dofla
