#include "dofla/distributed/group.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <set>

#include "dofla/core/error.h"
#include "dofla/distributed/gpu_link.h"
#include "dofla/distributed/shards.h"
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

struct Group::Gpus {
  bool never = false, always = false;  // what the user said
  Device own = {};                     // of this rank, where each has one to itself
  std::shared_ptr<const transport::GpuLink> link = {};  // made when it is first wanted
};

Group Group::launched() {
  const int started = started_by_mpi();
  if (started == 0) require_no_other_launcher();
  Group group;
  if (started > 1 || (started == 1 && transport::available())) group.join(started);
  const std::string_view asked = environment("DOFLA_NCCL");
  if (!asked.empty() && asked != "0" && asked != "always")
    fail(
        "DOFLA_NCCL is {}: expected 0, which exchanges through the memory of the CPU, always, or "
        "nothing",
        asked);
  // A process alone has nobody to be connected with, unless it is to try how that works.
  if (group.size_ > 1 || asked == "always")
    group.gpus_ = std::make_shared<Gpus>(Gpus{.never = asked == "0", .always = asked == "always"});
  return group;
}

void Group::join(int started) {
  const transport::Place place = transport::start(started);
  if (place.size < started)
    fail(
        "{} processes were started, but MPI finds {}: the mpirun is of another MPI than this dofla "
        "was built with",
        started, place.size);
  rank_ = place.rank;
  size_ = place.size;
  local_rank_ = place.local_rank;
  local_size_ = place.local_size;
}

bool Group::is_connected() const {
  return gpus_ != nullptr && gpus_->own.is_cuda();
}

void Group::connect(const Device& device) const {
  if (gpus_ == nullptr) return;
  *gpus_ = {.never = gpus_->never, .always = gpus_->always};
  const bool can = transport::can_link_gpus() && !gpus_->never;
  const std::vector<std::string> names = gather(can ? device.unique_name() : "");
  const std::set<std::string> different(names.begin(), names.end());
  if (different.size() == names.size() && !different.contains("")) {
    gpus_->own = device;
  } else if (gpus_->always && device.is_cuda()) {
    if (!transport::can_link_gpus())
      fail(
          "DOFLA_NCCL=always: this build of dofla has no NCCL: build it again where cmake finds "
          "nccl.h and libnccl, or leave the variable out");
    fail(
        "DOFLA_NCCL=always: {} ranks have {} GPUs between them: start as many ranks as there are "
        "GPUs, or leave the variable out",
        size_, different.size() - different.count(""));
  }
}

std::shared_ptr<const transport::GpuLink> Group::link(const Device& device) const {
  if (!is_connected() || gpus_->own != device) return nullptr;
  if (gpus_->link == nullptr) {
    const std::vector<std::string> names = gather(is_first() ? transport::new_link_name() : "");
    gpus_->link = std::make_shared<transport::GpuLink>(names.front(), device, rank_, size_);
  }
  return gpus_->link;
}

void Group::leave() const {
  if (gpus_ != nullptr) gpus_->link.reset();
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

void Group::sum(std::span<double> values) const {
  if (size_ > 1) transport::sum(values);
}

void Group::sum(std::span<Tensor> tensors) const {
  if (alone() || tensors.empty()) return;
  std::vector<int64_t> counts;
  for (const Tensor& tensor : tensors) counts.push_back(tensor.count());
  const Shards shards(*this, std::move(counts), tensors.front().device());
  shards.sum(tensors);
  shards.gather(tensors);
}

std::vector<std::string> Group::gather(std::string_view bytes) const {
  return size_ == 1 ? std::vector{std::string(bytes)} : transport::gather(bytes);
}

bool Group::any(bool mine) const {
  return size_ == 1 ? mine : transport::any(mine);
}

void Group::wait() const {
  if (size_ > 1) transport::any(false);
}

}  // namespace dofla
