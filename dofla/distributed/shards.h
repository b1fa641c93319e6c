// How ranks divide the elements of a list of tensors among themselves, so that each holds what is
// kept beside its share alone: an optimizer's moments (ZeRO 1).
//
// Tensors are cut into blocks of kBlock elements, the last one of each being shorter, and the
// blocks, in the order of the tensors, into parcels, which are exchanged at once. Every rank holds
// a share of the blocks of each parcel: so nobody waits for one rank, and what is worked out block
// by block does not depend on who holds it. Alone, a rank holds whole tensors.
#pragma once

#include <deque>
#include <memory>
#include <utility>

#include "dofla/distributed/group.h"

namespace dofla {

// Consecutive elements of one tensor of a list.
struct Shard {
  size_t tensor = 0;
  int64_t begin = 0, end = 0;

  int64_t count() const { return end - begin; }
  // [count], the same memory.
  Tensor of(const Tensor& whole) const;
  Tensor of(std::span<const Tensor> all) const { return of(all[tensor]); }
};

class Shards {
 public:
  static constexpr int64_t kBlock = 4096;

  // Of tensors of so many elements on a device. All ranks.
  Shards(const Group& group, std::vector<int64_t> counts, const Device& device = {});

  const std::vector<Shard>& own() const { return of(group_.rank()); }
  const std::vector<Shard>& of(int rank) const { return held_[static_cast<size_t>(rank)]; }
  const Group& group() const { return group_; }

  // All ranks. Own shards become the sums over the ranks, in the order of their numbers, as
  // Group::sum() has them; the others stay as they were. F32. What is on a GPU goes through the
  // memory of the CPU where GPUs are not connected.
  void sum(std::span<const Tensor> tensors) const;

  // All ranks. Takes every shard from the rank that holds it. F32, by the same ways.
  void gather(std::span<const Tensor> tensors) const;

  // All ranks. A number of every block, by tensors, from those of the own blocks in their order.
  std::vector<std::vector<double>> gather_blocks(const std::vector<double>& own) const;

  // All ranks. On the first one tensor number `tensor`, flat and on the CPU, from what each rank
  // holds of it: held[i], of own()[i], has a number for every `each` of its elements. Undefined on
  // the others.
  Tensor whole(size_t tensor, std::span<const Tensor> held, DType dtype, int64_t each = 1) const;

 private:
  using Parcel = std::vector<std::vector<Shard>>;  // by ranks

  void require_counts(std::span<const Tensor> tensors) const;

  Group group_;
  std::vector<int64_t> counts_;
  std::shared_ptr<const transport::GpuLink> link_;  // between the GPUs of the ranks, or null
  std::vector<Parcel> parcels_;
  std::vector<std::vector<Shard>> held_;  // by ranks, those that touch put together

  friend class ShardedSum;
};

// Such sums while the tensors are still being made. They become complete from the highest layer to
// the lowest, and parcels are sent in that order, the same on all ranks. On a GPU a sum takes its
// turn in the stream: nothing is won there over a sum of what is complete.
class ShardedSum {
 public:
  // Tensor i is complete with layers[i]; where it is −1, or there are none, with finish() only.
  ShardedSum(const Shards& shards, std::span<const Tensor> tensors,
             std::span<const int64_t> layers = {});
  ~ShardedSum();
  ShardedSum(const ShardedSum&) = delete;
  ShardedSum& operator=(const ShardedSum&) = delete;

  // Sends off what is complete with this layer and those above it: it must not change before
  // finish(), which may be called without.
  void finished(int64_t layer);
  void finish();

 private:
  struct Parts;  // of a sum, from the other ranks
  void start_next();
  void add_oldest();

  const Shards& shards_;
  std::span<const Tensor> tensors_;
  std::vector<std::pair<int64_t, size_t>> order_;  // a layer and a parcel
  size_t started_ = 0;
  std::deque<std::unique_ptr<Parts>> underway_;
};

}  // namespace dofla
