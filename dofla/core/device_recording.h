// A fixed sequence of GPU work is recorded once (a CUDA graph) and then launched with a single
// call, however many operations it consists of.
#pragma once

#include <functional>
#include <memory>

#include "dofla/core/device.h"

namespace dofla {

class Recording {
 public:
  // Records what `work` gives to the GPU's stream; none of it runs before replay(). The work must
  // not wait for the GPU nor copy to or from the CPU, and should have run once before: operations
  // make their choices then. Tensors allocated meanwhile keep their memory as long as the
  // recording lives, so that it is not reused between replays; all others that the work uses must
  // live as long.
  Recording(const Device& gpu, const std::function<void()>& work);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  void replay();  // launches it on the stream, without waiting

 private:
  struct Graph;
  std::unique_ptr<Graph> graph_;
};

}  // namespace dofla
