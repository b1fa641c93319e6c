#include "dofla/distributed/shards.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "dofla/core/error.h"
#include "dofla/distributed/agreement.h"
#include "dofla/distributed/transport.h"

namespace dofla {
namespace {

// Blocks of a parcel: 4 MiB, or so many that shares differ little.
constexpr int64_t kParcelBlocks = 256;
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

transport::Message message(int rank, Tensor part) {
  return {rank, part.mutable_raw(), part.bytes()};
}

// Elements of a tensor of which one number in `each` is kept.
Tensor kept_of(const Shard& shard, const Tensor& whole, int64_t each) {
  return whole.slice(shard.begin / each, (shard.end + each - 1) / each);
}

}  // namespace

Tensor Shard::of(const Tensor& whole) const {
  return whole.reshape({whole.count()}).slice(begin, end);
}

Shards::Shards(const Group& group, std::vector<int64_t> counts)
    : group_(group), counts_(std::move(counts)), held_(static_cast<size_t>(group.size())) {
  std::vector<Shard> blocks;
  for (size_t i = 0; i < counts_.size(); ++i)
    for (int64_t at = 0; at < counts_[i]; at += kBlock)
      blocks.push_back({i, at, std::min(at + kBlock, counts_[i])});
  const int64_t each = std::max(kParcelBlocks, kBlocksOfRank * group.size());
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

void Shards::sum(std::span<const Tensor> tensors) const {
  if (!group_.alone()) ShardedSum(*this, tensors).finish();
}

void Shards::gather(std::span<const Tensor> tensors) const {
  if (group_.alone()) return;
  std::deque<transport::Exchange> underway;
  const auto finish_oldest = [&] {
    underway.front().wait();
    underway.pop_front();
  };
  for (const Parcel& parcel : parcels_) {
    std::vector<transport::Message> sent, received;
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (rank == group_.rank()) continue;
      for (const Shard& shard : parcel[static_cast<size_t>(group_.rank())])
        sent.push_back(message(rank, shard.of(tensors)));
      for (const Shard& shard : parcel[static_cast<size_t>(rank)])
        received.push_back(message(rank, shard.of(tensors)));
    }
    if (underway.size() == kMostUnderway) finish_oldest();
    underway.emplace_back(sent, received);
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
  std::vector<Tensor> mine;  // what is sent must stay where it is
  std::vector<transport::Message> sent, received;
  Tensor all;
  if (group_.is_first()) all = Tensor({(counts_[tensor] + each - 1) / each}, dtype);
  for (size_t i = 0; i < held.size(); ++i) {
    if (own()[i].tensor != tensor) continue;
    if (group_.is_first())
      kept_of(own()[i], all, each).assign(held[i]);
    else
      sent.push_back(message(0, mine.emplace_back(held[i].to(Device()))));
  }
  for (int rank = 1; group_.is_first() && rank < group_.size(); ++rank)
    for (const Shard& shard : of(rank))
      if (shard.tensor == tensor) received.push_back(message(rank, kept_of(shard, all, each)));
  if (!sent.empty() || !received.empty()) transport::Exchange(sent, received).wait();
  return all;
}

// What came from the other ranks stands one after another, in their order.
struct ShardedSum::Underway {
  const std::vector<Shard>& own;
  std::vector<float> received;
  transport::Exchange exchange;
};

ShardedSum::ShardedSum(const Shards& shards, std::span<const Tensor> tensors,
                       std::span<const int64_t> layers)
    : shards_(shards), tensors_(tensors) {
  require(tensors.size() == shards.counts_.size() &&
              (layers.empty() || layers.size() == tensors.size()),
          "shards: {} tensors of {} layers, expected {}", tensors.size(), layers.size(),
          shards.counts_.size());
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
  std::vector<float> buffer(static_cast<size_t>(count_of(own) * (group.size() - 1)));
  std::vector<transport::Message> sent, received;
  float* to = buffer.data();
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank()) continue;
    for (const Shard& shard : parcel[static_cast<size_t>(rank)])
      sent.push_back(message(rank, shard.of(tensors_)));
    for (const Shard& shard : own) {
      received.push_back({rank, to, shard.count() * static_cast<int64_t>(sizeof(float))});
      to += shard.count();
    }
  }
  if (underway_.size() == kMostUnderway) add_oldest();
  underway_.push_back(std::unique_ptr<Underway>(
      new Underway{own, std::move(buffer), transport::Exchange(sent, received)}));
}

// A sum of two does not depend on their order: what ranks before this one sent is added up first.
void ShardedSum::add_oldest() {
  Underway& one = *underway_.front();
  one.exchange.wait();
  const int64_t own = count_of(one.own), before = shards_.group_.rank();
  const auto add = [](const float* from, int64_t count, float* to) {
    for (int64_t i = 0; i < count; ++i) to[i] += from[i];
  };
  float* received = one.received.data();
  for (int64_t sender = 1; sender < before; ++sender) add(received + sender * own, own, received);
  const auto add_to_own = [&](const float* from) {
    for (const Shard& shard : one.own) {
      add(from, shard.count(), shard.of(tensors_).data<float>());
      from += shard.count();
    }
  };
  add_to_own(received);
  for (int64_t sender = std::max<int64_t>(before, 1); sender < shards_.group_.size() - 1; ++sender)
    add_to_own(received + sender * own);
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
