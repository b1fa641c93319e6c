#include "dofla/core/progress.h"

#include <fmt/format.h>

namespace dofla {

void cancel(const ProgressUpdate& update) {
  const std::string total = update.total > 0 ? fmt::format(" of {}", update.total) : "";
  throw Cancelled(
      fmt::format("{}: stopped after {}{} {}", update.stage, update.done, total, update.unit));
}

void stop_if_asked(const Progress& progress, const ProgressUpdate& update) {
  if (progress.stop_asked()) cancel(update);
}

void report(const Progress& progress, const ProgressUpdate& update) {
  progress.tell(update);
  stop_if_asked(progress, update);
}

}  // namespace dofla
