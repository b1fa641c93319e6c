// Work on every draw of every head, by all cores and ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "dofla/core/progress.h"
#include "dofla/distributed/group.h"
#include "dofla/dof/dof_table.h"

namespace dofla {

struct HeadDraw {
  int64_t layer = 0, head = 0, draw = 0;
  size_t row = 0;  // of a table of [layers, heads, draws]
};

// Calls work() for the draws of this rank's share, in no particular order. An Error that it throws
// is thrown here with the layer and the head.
void for_each_draw(const DofTable& table, int64_t draws, std::string_view stage,
                   const Progress& progress, const Group& group,
                   const std::function<void(const HeadDraw&)>& work);

}  // namespace dofla
