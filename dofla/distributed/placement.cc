#include "dofla/distributed/placement.h"

#include <algorithm>

#include <sched.h>
#include <unistd.h>

#include "dofla/distributed/agreement.h"

namespace dofla {
namespace {

struct Cores {
  char machine[256] = {};
  cpu_set_t may_use = {};
};

}  // namespace

int threads_of_rank(const Group& group) {
  std::vector<Cores> mine(1);
  Cores& own = mine.front();
  ::gethostname(own.machine, sizeof(own.machine) - 1);
  CPU_ZERO(&own.may_use);
  if (::sched_getaffinity(0, sizeof(own.may_use), &own.may_use) != 0) return 1;
  cpu_set_t together;
  CPU_ZERO(&together);
  int ranks = 0;
  for (const std::vector<Cores>& rank : gather_all(group, mine)) {
    const Cores& one = rank.front();
    if (std::string_view(one.machine) != own.machine) continue;
    ++ranks;
    CPU_OR(&together, &together, &one.may_use);
  }
  return std::max(1, std::min(CPU_COUNT(&own.may_use), CPU_COUNT(&together) / ranks));
}

}  // namespace dofla
