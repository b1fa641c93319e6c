// The processes that work on one job together, its ranks. Alone is the default and costs nothing;
// several are started by mpirun or srun and talk through MPI. Every function says whether all ranks
// must call it: such a call waits for the others.
//
// Tensors go from GPU to GPU (NCCL) where every rank has one to itself, otherwise through the
// memory of the CPU, with the same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dofla/core/tensor.h"

namespace dofla {

namespace transport {
class GpuLink;
}

// Consecutive things of which a rank takes some.
struct Share {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};

class Group {
 public:
  Group() = default;  // this process alone

  // All processes that one mpirun or srun started; this process alone where there was none. Once a
  // process, and leave() at its end. Throws Error saying what to do where several processes were
  // started that cannot find each other.
  static Group launched();
  // All ranks, of the device that each computes on: finds out whether GPUs can reach each other,
  // for all copies of this group. Without it they do not. The environment's DOFLA_NCCL has a say in
  // it: docs/scale.md.
  void connect(const Device& device) const;
  void leave() const;                         // all ranks, when all went well
  [[noreturn]] void abort(int status) const;  // ends all ranks, from any of them

  int rank() const { return rank_; }
  int size() const { return size_; }
  // One rank may be asked to do as if there were several (DOFLA_NCCL=always).
  bool alone() const { return size_ == 1 && !is_connected(); }
  bool is_first() const { return rank_ == 0; }  // the one that prints and writes
  // Among the ranks on the same machine.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }

  // The part of [0, count) that a rank takes: shares differ by at most one, the first ranks have
  // the larger ones.
  Share share(int64_t count) const { return share(count, rank_); }
  Share share(int64_t count, int rank) const;

  // All ranks. Sums over the ranks, in the order of their numbers: the same number of ranks gives
  // the same bits, on every one of them. All come with as many elements.
  void sum(std::span<double> values) const;
  void sum(std::span<Tensor> tensors) const;  // F32, all on one device, whichever

  // All ranks. What each of them says, by their numbers; bytes of any kind and length.
  std::vector<std::string> gather(std::string_view bytes) const;

  bool any(bool mine) const;  // all ranks
  void wait() const;          // all ranks: until the last one is here

  // All ranks. The way to the others' GPUs for tensors on this device, on all of them or on none.
  std::shared_ptr<const transport::GpuLink> link(const Device& device) const;

 private:
  struct Gpus;
  void join(int started);  // so many processes
  bool is_connected() const;

  std::shared_ptr<Gpus> gpus_;  // null where they are not to be connected
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
};

}  // namespace dofla
