// What Group needs of MPI, for all processes that were started together: mpi.cc has it, no_mpi.cc
// refuses where dofla is built without.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dofla/core/tensor.h"

namespace dofla::transport {

struct Place {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // among those on the same machine
};

bool available();
Place start(int processes);  // so many were started, as far as is known
void finish();               // where it was started
[[noreturn]] void abort(int status);

void sum(std::span<double> values);  // in the order of the ranks, whatever MPI does
std::vector<std::string> gather(std::string_view bytes);
bool any(bool mine);

// A tensor that goes to a rank, or that is written by what comes from it. Two ranks must name those
// between them in the same order.
struct Message {
  int rank = 0;
  Tensor tensor;
};

// Messages on the CPU that are under way while this rank does something else. What is sent must not
// change, and what is received has no value, before wait() has returned.
class Exchange {
 public:
  Exchange(std::span<const Message> sent, std::span<const Message> received);
  ~Exchange();
  Exchange(Exchange&&) noexcept;
  Exchange& operator=(Exchange&&) noexcept;

  void wait();

 private:
  struct Requests;
  std::unique_ptr<Requests> requests_;
};

}  // namespace dofla::transport
