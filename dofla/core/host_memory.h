// Memory of tensors on the CPU that are too large for the heap.
//
// Activations come and go by the gigabyte, and the system clears every page that it hands out,
// which takes as long as a pass over the data. So what a tensor gives back is kept for the next one
// of about its size. Used and kept together are never more than five quarters of what was once in
// use: a heap, which splits its blocks, ends up with twice as much.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace dofla {

class HostMemory {
 public:
  HostMemory() = default;
  ~HostMemory();  // all that was handed out must have come back
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // The one of all tensors. It lives as long as the process.
  static HostMemory& of_process();

  // At least `size` bytes, on pages of their own, with unspecified contents; std::bad_alloc where
  // the system has no more.
  std::shared_ptr<void> allocate(size_t size);

  size_t kept() const;  // bytes that wait for a tensor

 private:
  struct Block {
    void* memory;
    size_t size;
  };

  Block take(size_t size);
  void give_back(Block block) noexcept;
  bool reuse(size_t size, Block& found);
  void release_beyond(size_t bytes);

  mutable std::mutex mutex_;
  std::vector<Block> blocks_;  // kept ones, those that came back first in front
  size_t kept_ = 0;
  size_t used_ = 0;
  size_t most_used_ = 0;
};

}  // namespace dofla
