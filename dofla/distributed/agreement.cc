#include "dofla/distributed/agreement.h"

#include <algorithm>

#include "dofla/checkpoint/fingerprint.h"
#include "dofla/core/error.h"

namespace dofla {

void require_same(const Group& group, std::string_view what, std::string_view value) {
  require_same(group, Json{{what, value}});
}

void require_same(const Group& group, const Json& settings) {
  if (group.alone()) return;
  const std::vector<std::string> all = group.gather(settings.dump());
  const Json first = Json::parse(all.front());
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all.front()) continue;
    const Json other = Json::parse(all[rank]);
    Json both = first;
    both.update(other);
    for (const auto& [key, value] : both.items()) {
      const Json here = first.value(key, Json()), there = other.value(key, Json());
      if (here != there)
        fail("rank {} differs from rank 0 in its {}: {} and {}; all ranks must do the same job",
             rank, key, there.dump(), here.dump());
    }
  }
}

void require_same_weights(const Group& group, const Checkpoint& model) {
  if (!group.alone()) require_same(group, "weights", fingerprint_of(model));
}

void report(const Group& group, const Progress& progress, const ProgressUpdate& update) {
  progress.tell(update);
  if (group.any(progress.stop_asked())) cancel(update);
}

Progress at_own_pace(const Group& group, const Progress& progress) {
  if (group.alone()) return progress;
  return Progress([progress, size = group.size()](const ProgressUpdate& update) {
    ProgressUpdate all = update;
    all.done *= size;
    if (all.total > 0) all.done = std::min(all.done, all.total);
    progress.tell(all);
  });
}

}  // namespace dofla
