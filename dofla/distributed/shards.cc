#include "dofla/distributed/shards.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include "dofla/core/error.h"
#include "dofla/distributed/agreement.h"
#include "dofla/distributed/gpu_link.h"
#include "dofla/ops/activation.h"

namespace dofla {
namespace {

// Blocks of a parcel: 4 MiB, or so many that shares differ little. Between GPUs, where it takes
// longer to begin an exchange than to move so little, 32 MiB.
constexpr int64_t kParcelBlocks = 256;
constexpr int64_t kLinkedParcelBlocks = 2048;
constexpr int64_t kBlocksOfRank = 16;
constexpr size_t kMostUnderway = 8;  // parcels, so that memory does not grow with the tensors

int64_t blocks_of(int64_t count) {
  return (count + Shards::kBlock - 1) / Shards::kBlock;
}

int64_t count_of(const std::vector<Shard>& shards) {
  int64_t count = 0;
  for (const Shard& shard : shards) count += shard.count();
  return count;
}

void append(const Shard& shard, std::vector<Shard>& shards) {
  const bool touches =
      !shards.empty() && shards.back().tensor == shard.tensor && shards.back().end == shard.begin;
  if (touches)
    shards.back().end = shard.end;
  else
    shards.push_back(shard);
}

using Messages = std::vector<transport::Message>;

// Of tensors on GPUs that are not connected; it is over when this returns.
void exchange_by_cpu(const Messages& sent, const Messages& received) {
  std::map<const void*, Tensor> copies;  // what goes to several ranks is copied once
  Messages from, to;
  for (const auto& [rank, tensor] : sent) {
    Tensor& copy = copies[tensor.raw()];
    if (!copy.defined()) copy = tensor.to(Device());
    from.push_back({rank, copy});
  }
  for (const auto& [rank, tensor] : received)
    to.push_back({rank, Tensor(tensor.shape(), tensor.dtype())});
  transport::Exchange(from, to).wait();
  for (size_t i = 0; i < to.size(); ++i) Tensor(received[i].tensor).assign(to[i].tensor);
}

// What is under way then: messages on the CPU. Those between GPUs take their turn in the streams.
std::optional<transport::Exchange> begin_exchange(const transport::GpuLink* link,
                                                  const Messages& sent, const Messages& received) {
  if (sent.empty() && received.empty()) return std::nullopt;
  const Tensor& any = (sent.empty() ? received : sent).front().tensor;
  if (!any.device().is_cuda()) return transport::Exchange(sent, received);
  if (link != nullptr)
    link->exchange(sent, received);
  else
    exchange_by_cpu(sent, received);
  return std::nullopt;
}

void wait_for(std::optional<transport::Exchange>& exchange) {
  if (exchange) exchange->wait();
}

// Elements of a tensor of which one number in `each` is kept.
Tensor kept_of(const Shard& shard, const Tensor& whole, int64_t each) {
  return whole.slice(shard.begin / each, (shard.end + each - 1) / each);
}

}  // namespace

Tensor Shard::of(const Tensor& whole) const {
  return whole.reshape({whole.count()}).slice(begin, end);
}

Shards::Shards(const Group& group, std::vector<int64_t> counts, const Device& device)
    : group_(group),
      counts_(std::move(counts)),
      link_(group.link(device)),
      held_(static_cast<size_t>(group.size())) {
  std::vector<Shard> blocks;
  for (size_t i = 0; i < counts_.size(); ++i)
    for (int64_t at = 0; at < counts_[i]; at += kBlock)
      blocks.push_back({i, at, std::min(at + kBlock, counts_[i])});
  const int64_t each = std::max(link_ == nullptr ? kParcelBlocks : kLinkedParcelBlocks,
                                kBlocksOfRank * group.size());
  for (int64_t at = 0; at < std::ssize(blocks); at += each) {
    Parcel& parcel = parcels_.emplace_back(held_.size());
    const int64_t count = std::min(each, std::ssize(blocks) - at);
    for (size_t rank = 0; rank < held_.size(); ++rank) {
      const Share share = group.share(count, static_cast<int>(rank));
      for (int64_t i = at + share.begin; i < at + share.end; ++i) {
        append(blocks[static_cast<size_t>(i)], parcel[rank]);
        append(blocks[static_cast<size_t>(i)], held_[rank]);
      }
    }
  }
}

void Shards::require_counts(std::span<const Tensor> tensors) const {
  require(tensors.size() == counts_.size(), "shards: {} tensors, expected {}", tensors.size(),
          counts_.size());
  for (size_t i = 0; i < tensors.size(); ++i)
    require(tensors[i].count() == counts_[i] && tensors[i].device() == tensors.front().device(),
            "shards: tensor {} of {} elements on {}, expected {} on {}", i, tensors[i].count(),
            tensors[i].device().name(), counts_[i], tensors.front().device().name());
}

void Shards::sum(std::span<const Tensor> tensors) const {
  if (!group_.alone()) ShardedSum(*this, tensors).finish();
}

void Shards::gather(std::span<const Tensor> tensors) const {
  require_counts(tensors);
  if (group_.alone()) return;
  std::deque<std::optional<transport::Exchange>> underway;
  const auto finish_oldest = [&] {
    wait_for(underway.front());
    underway.pop_front();
  };
  for (const Parcel& parcel : parcels_) {
    Messages sent, received;
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (rank == group_.rank()) continue;
      for (const Shard& shard : parcel[static_cast<size_t>(group_.rank())])
        sent.push_back({rank, shard.of(tensors)});
      for (const Shard& shard : parcel[static_cast<size_t>(rank)])
        received.push_back({rank, shard.of(tensors)});
    }
    if (underway.size() == kMostUnderway) finish_oldest();
    underway.push_back(begin_exchange(link_.get(), sent, received));
  }
  while (!underway.empty()) finish_oldest();
}

std::vector<std::vector<double>> Shards::gather_blocks(const std::vector<double>& own) const {
  std::vector<std::vector<double>> blocks;
  for (const int64_t count : counts_) blocks.emplace_back(static_cast<size_t>(blocks_of(count)));
  const std::vector<std::vector<double>> ranks = gather_all(group_, own);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    auto from = ranks[rank].begin();
    for (const Shard& shard : held_[rank]) {
      const int64_t count = blocks_of(shard.count());
      std::copy_n(from, count, blocks[shard.tensor].begin() + shard.begin / kBlock);
      from += count;
    }
  }
  return blocks;
}

Tensor Shards::whole(size_t tensor, std::span<const Tensor> held, DType dtype, int64_t each) const {
  require(held.size() == own().size() && kBlock % each == 0, "shards: {} parts of {} shards",
          held.size(), own().size());
  if (group_.alone())
    for (size_t i = 0; i < held.size(); ++i)
      if (own()[i].tensor == tensor) return held[i].to(Device());
  Messages sent, received;
  Tensor all;
  if (group_.is_first()) all = Tensor({(counts_[tensor] + each - 1) / each}, dtype);
  for (size_t i = 0; i < held.size(); ++i) {
    if (own()[i].tensor != tensor) continue;
    if (group_.is_first())
      kept_of(own()[i], all, each).assign(held[i]);
    else
      sent.push_back({0, held[i].to(Device())});
  }
  for (int rank = 1; group_.is_first() && rank < group_.size(); ++rank)
    for (const Shard& shard : of(rank))
      if (shard.tensor == tensor) received.push_back({rank, kept_of(shard, all, each)});
  std::optional<transport::Exchange> exchange = begin_exchange(nullptr, sent, received);
  wait_for(exchange);
  return all;
}

struct ShardedSum::Parts {
  const std::vector<Shard>& own;
  Tensor received;  // [other ranks, elements of own], in their order
  std::optional<transport::Exchange> exchange = {};

  Tensor of(int64_t sender) const {
    return received.slice(sender, sender + 1).reshape({received.size(1)});
  }
};

ShardedSum::ShardedSum(const Shards& shards, std::span<const Tensor> tensors,
                       std::span<const int64_t> layers)
    : shards_(shards), tensors_(tensors) {
  shards.require_counts(tensors);
  require(layers.empty() || layers.size() == tensors.size(), "shards: {} tensors of {} layers",
          tensors.size(), layers.size());
  for (size_t i = 0; i < shards.parcels_.size(); ++i) {
    int64_t complete = layers.empty() ? -1 : std::numeric_limits<int64_t>::max();
    for (const std::vector<Shard>& of_rank : shards.parcels_[i])
      for (const Shard& shard : of_rank)
        if (!layers.empty()) complete = std::min(complete, layers[shard.tensor]);
    order_.emplace_back(complete, i);
  }
  std::ranges::stable_sort(order_, std::greater(), &std::pair<int64_t, size_t>::first);
}

// After an error MPI may still write what others send: the memory for it is left to the process,
// which ends with all others.
ShardedSum::~ShardedSum() {
  for (auto& one : underway_) static_cast<void>(one.release());
}

void ShardedSum::start_next() {
  const Group& group = shards_.group_;
  const Shards::Parcel& parcel = shards_.parcels_[order_[started_++].second];
  const std::vector<Shard>& own = parcel[static_cast<size_t>(group.rank())];
  const Device& device = tensors_.front().device();
  auto parts = Parts{own, Tensor({group.size() - 1, count_of(own)}, DType::kF32, device)};
  Messages sent, received;
  for (int rank = 0, sender = 0; rank < group.size(); ++rank) {
    if (rank == group.rank()) continue;
    for (const Shard& shard : parcel[static_cast<size_t>(rank)])
      sent.push_back({rank, shard.of(tensors_)});
    const Tensor to = parts.of(sender++);
    int64_t at = 0;
    for (const Shard& shard : own) {
      received.push_back({rank, to.slice(at, at + shard.count())});
      at += shard.count();
    }
  }
  // A stream takes one after the other: there more of them would only need more memory.
  const size_t most = device.is_cuda() ? 1 : kMostUnderway;
  if (underway_.size() == most) add_oldest();
  parts.exchange = begin_exchange(shards_.link_.get(), sent, received);
  underway_.push_back(std::make_unique<Parts>(std::move(parts)));
}

// A sum of two does not depend on their order: what ranks before this one sent is added up first.
void ShardedSum::add_oldest() {
  Parts& parts = *underway_.front();
  wait_for(parts.exchange);
  const int64_t senders = shards_.group_.size() - 1, before = shards_.group_.rank();
  const auto add_to_own = [&](const Tensor& part) {
    int64_t at = 0;
    for (const Shard& shard : parts.own) {
      Tensor sum = shard.of(tensors_);
      add(sum, part.slice(at, at + shard.count()));
      at += shard.count();
    }
  };
  for (int64_t sender = 1; sender < before; ++sender) {
    Tensor sum = parts.of(0);
    add(sum, parts.of(sender));
  }
  if (before > 0) add_to_own(parts.of(0));
  for (int64_t sender = before; sender < senders; ++sender) add_to_own(parts.of(sender));
  underway_.pop_front();
}

void ShardedSum::finished(int64_t layer) {
  while (started_ < order_.size() && order_[started_].first >= layer) start_next();
}

void ShardedSum::finish() {
  finished(-1);
  while (!underway_.empty()) add_oldest();
}

}  // namespace dofla
