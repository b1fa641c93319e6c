#include "dofla/distributed/group.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "dofla/core/error.h"
#include "dofla/distributed/transport.h"

namespace dofla {
namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int number_in(const char* name) {  // 0 where there is none
  const std::string_view text = environment(name);
  int number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() ? number : 0;
}

// How many processes a launcher that MPI knows has started, as far as the environment says; 0 if
// there was none.
int started_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const int size = number_in(name); size > 0) return size;
  if (environment("PMIX_RANK").empty()) return 0;
  return std::max(1, number_in("SLURM_STEP_NUM_TASKS"));
}

// Launchers that leave MPI out would have every process do the whole job.
void require_no_other_launcher() {
  if (const int size = number_in("SLURM_STEP_NUM_TASKS"); size > 1)
    fail(
        "srun started {} processes that MPI does not know of: start them with srun --mpi=pmix, or "
        "with mpirun",
        size);
  if (const int size = number_in("WORLD_SIZE"); size > 1 && !environment("RANK").empty())
    fail(
        "RANK and WORLD_SIZE say that this is one of {} processes, but they find each other "
        "through "
        "MPI alone: start them with mpirun -n {} or srun --mpi=pmix",
        size, size);
}

}  // namespace

Group Group::launched() {
  const int started = started_by_mpi();
  if (started == 0) require_no_other_launcher();
  Group group;
  if (started == 0 || (started == 1 && !transport::available())) return group;
  const transport::Place place = transport::start(started);
  if (place.size < started)
    fail(
        "{} processes were started, but MPI finds {}: the mpirun is of another MPI than this dofla "
        "was built with",
        started, place.size);
  group.rank_ = place.rank;
  group.size_ = place.size;
  group.local_rank_ = place.local_rank;
  group.local_size_ = place.local_size;
  return group;
}

void Group::leave() const {
  transport::finish();
}

void Group::abort(int status) const {
  transport::abort(status);
}

Share Group::share(int64_t count, int rank) const {
  const int64_t each = count / size_, more = count % size_;
  const int64_t begin = rank * each + std::min<int64_t>(rank, more);
  return {begin, begin + each + (rank < more ? 1 : 0)};
}

void Group::sum(std::span<float> values) const {
  if (!alone()) transport::sum(values);
}

void Group::sum(std::span<double> values) const {
  if (!alone()) transport::sum(values);
}

void Group::sum(std::span<Tensor> tensors) const {
  if (alone()) return;
  constexpr size_t kAtOnce = size_t{1} << 22;
  std::vector<Tensor> here;
  std::vector<std::span<float>> waiting;  // what the next exchange carries
  std::vector<float> packed;
  const auto exchange = [&] {
    transport::sum(std::span(packed));
    const float* from = packed.data();
    for (const std::span<float> part : waiting) {
      std::copy_n(from, part.size(), part.data());
      from += part.size();
    }
    waiting.clear();
    packed.clear();
  };
  for (const Tensor& tensor : tensors) {
    here.push_back(tensor.to(Device()));
    const std::span all(here.back().data<float>(), static_cast<size_t>(tensor.count()));
    for (size_t at = 0; at < all.size();) {
      const auto part = all.subspan(at, std::min(kAtOnce - packed.size(), all.size() - at));
      packed.insert(packed.end(), part.begin(), part.end());
      waiting.push_back(part);
      at += part.size();
      if (packed.size() == kAtOnce) exchange();
    }
  }
  exchange();
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].device().is_cuda()) tensors[i].assign(here[i]);
}

std::vector<std::string> Group::gather(std::string_view bytes) const {
  return alone() ? std::vector{std::string(bytes)} : transport::gather(bytes);
}

bool Group::any(bool mine) const {
  return alone() ? mine : transport::any(mine);
}

void Group::wait() const {
  if (!alone()) transport::any(false);
}

}  // namespace dofla
