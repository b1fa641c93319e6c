#include "dofla/dof/each_draw.h"

#include "dofla/core/error.h"
#include "dofla/core/parallel.h"
#include "dofla/distributed/agreement.h"

namespace dofla {

void for_each_draw(const DofTable& table, int64_t draws, std::string_view stage,
                   const Progress& progress, const Group& group,
                   const std::function<void(const HeadDraw&)>& work) {
  const int64_t heads = table.heads_in_layer(), count = table.model.layers * heads * draws;
  const Progress pace = at_own_pace(group, progress);
  const Share own = group.share(count);
  int64_t done = 0;
  parallel_for(own.count(), [&](int64_t of_own) {
    const int64_t i = own.begin + of_own;
    const HeadDraw one = {i / (heads * draws), i / draws % heads, i % draws,
                          static_cast<size_t>(i)};
    try {
      work(one);
    } catch (const Error& error) {
      fail("layer {}, head {}: {}", one.layer + 1, one.head + 1, error.what());
    }
    ProgressUpdate update = {stage, 0, count, "heads"};
    // One thread at a time reports progress, and the reported count never decreases.
#pragma omp critical(dofla_dof_progress)
    {
      update.done = ++done;
      pace.tell(update);
    }
    stop_if_asked(pace, update);  // out here: nothing may be thrown across the critical section
  });
}

}  // namespace dofla
