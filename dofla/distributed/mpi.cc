// The only file that knows MPI. Errors of MPI itself end all ranks, as its default is.
#include <algorithm>

#include <mpi.h>
#include <unistd.h>

#include "dofla/distributed/transport.h"

namespace dofla::transport {
namespace {

int ranks() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

int own_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

}  // namespace

bool available() {
  return true;
}

Place start(int) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  Place place = {.rank = own_rank(), .size = ranks()};
  MPI_Comm machine = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
  MPI_Comm_rank(machine, &place.local_rank);
  MPI_Comm_size(machine, &place.local_size);
  MPI_Comm_free(&machine);
  return place;
}

void finish() {
  int started = 0;
  MPI_Initialized(&started);
  if (started != 0) MPI_Finalize();
}

void abort(int status) {
  int started = 0;
  MPI_Initialized(&started);
  if (started != 0) MPI_Abort(MPI_COMM_WORLD, status);
  ::_exit(status);
}

// Every rank adds up its part of the values and hands the sum to all: no more bytes than in a ring,
// every sum is made once, and its order is ours. MPI_Allreduce chooses an order by what is fastest.
void sum(std::span<double> values) {
  constexpr size_t kAtOnce = size_t{1} << 22;  // MPI counts with int
  const int size = ranks(), mine = own_rank();
  std::vector<int> counts(static_cast<size_t>(size)), begins(counts.size()),
      own_counts(counts.size()), own_begins(counts.size());
  std::vector<double> received;
  for (size_t at = 0; at < values.size(); at += kAtOnce) {
    const std::span<double> part = values.subspan(at, std::min(kAtOnce, values.size() - at));
    const auto place = [&](int rank) {
      return static_cast<int>(part.size() * static_cast<size_t>(rank) / counts.size());
    };
    const int own = place(mine + 1) - place(mine);
    for (int r = 0; r < size; ++r) {
      const auto i = static_cast<size_t>(r);
      begins[i] = place(r);
      counts[i] = place(r + 1) - place(r);
      own_counts[i] = own;
      own_begins[i] = own * r;
    }
    received.resize(static_cast<size_t>(own) * counts.size());
    MPI_Alltoallv(part.data(), counts.data(), begins.data(), MPI_DOUBLE, received.data(),
                  own_counts.data(), own_begins.data(), MPI_DOUBLE, MPI_COMM_WORLD);
    double* sum = part.data() + place(mine);
    std::copy_n(received.data(), own, sum);
    for (const double* from = received.data() + own; from != received.data() + received.size();)
      for (int i = 0; i < own; ++i) sum[i] += *from++;
    MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DOUBLE, part.data(), counts.data(), begins.data(),
                   MPI_DOUBLE, MPI_COMM_WORLD);
  }
}

std::vector<std::string> gather(std::string_view bytes) {
  constexpr uint64_t kAtOnce = uint64_t{1} << 30;
  std::vector<uint64_t> sizes(static_cast<size_t>(ranks()));
  const uint64_t own = bytes.size();
  MPI_Allgather(&own, 1, MPI_UINT64_T, sizes.data(), 1, MPI_UINT64_T, MPI_COMM_WORLD);
  std::vector<std::string> all(sizes.size());
  const auto mine = static_cast<size_t>(own_rank());
  for (size_t r = 0; r < all.size(); ++r) {
    all[r].resize(sizes[r]);
    if (r == mine) std::ranges::copy(bytes, all[r].begin());
    for (uint64_t at = 0; at < sizes[r]; at += kAtOnce)
      MPI_Bcast(all[r].data() + at, static_cast<int>(std::min(kAtOnce, sizes[r] - at)), MPI_BYTE,
                static_cast<int>(r), MPI_COMM_WORLD);
  }
  return all;
}

bool any(bool mine) {
  int some = mine ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &some, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return some != 0;
}

struct Exchange::Requests {
  std::vector<MPI_Request> all;
};

// MPI counts with int: longer messages go in parts.
Exchange::Exchange(std::span<const Message> sent, std::span<const Message> received)
    : requests_(std::make_unique<Requests>()) {
  constexpr int64_t kAtOnce = int64_t{1} << 30;
  const auto each_part = [&](int64_t bytes, const auto& begin) {
    for (int64_t at = 0; at < bytes; at += kAtOnce)
      begin(at, static_cast<int>(std::min(kAtOnce, bytes - at)));
  };
  for (const Message& message : received) {
    auto* to = static_cast<std::byte*>(Tensor(message.tensor).mutable_raw());
    each_part(message.tensor.bytes(), [&](int64_t at, int bytes) {
      MPI_Irecv(to + at, bytes, MPI_BYTE, message.rank, 0, MPI_COMM_WORLD,
                &requests_->all.emplace_back());
    });
  }
  for (const Message& message : sent) {
    const auto* from = static_cast<const std::byte*>(message.tensor.raw());
    each_part(message.tensor.bytes(), [&](int64_t at, int bytes) {
      MPI_Isend(from + at, bytes, MPI_BYTE, message.rank, 0, MPI_COMM_WORLD,
                &requests_->all.emplace_back());
    });
  }
}

Exchange::~Exchange() = default;
Exchange::Exchange(Exchange&&) noexcept = default;
Exchange& Exchange::operator=(Exchange&&) noexcept = default;

void Exchange::wait() {
  MPI_Waitall(static_cast<int>(requests_->all.size()), requests_->all.data(), MPI_STATUSES_IGNORE);
}

}  // namespace dofla::transport
