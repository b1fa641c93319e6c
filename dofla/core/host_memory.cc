#include "dofla/core/host_memory.h"

#include <algorithm>
#include <new>

#include <sys/mman.h>

namespace dofla {
namespace {

// A kept block serves a tensor that leaves no more than a third of it unused: less of it, and more
// blocks go back to the system; more of it, and memory is held that nobody uses.
bool fits(size_t block, size_t size) {
  return block >= size && block - size <= block / 3;
}

// The most that is held when so much has been in use.
size_t most_held(size_t used) {
  return used + used / 4;
}

void* map_pages(size_t size) {
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  ::madvise(memory, size, MADV_HUGEPAGE);
  return memory;
}

}  // namespace

HostMemory::~HostMemory() {
  release_beyond(0);
}

HostMemory& HostMemory::of_process() {
  static HostMemory& memory = *new HostMemory;  // never destroyed: tensors may end after main
  return memory;
}

std::shared_ptr<void> HostMemory::allocate(size_t size) {
  const Block block = take(size);
  return {block.memory, [this, block](void*) { give_back(block); }};
}

size_t HostMemory::kept() const {
  const std::lock_guard held(mutex_);
  return kept_;
}

HostMemory::Block HostMemory::take(size_t size) {
  const std::lock_guard held(mutex_);
  Block block{nullptr, size};
  if (!reuse(size, block)) {
    const size_t most = std::max(most_used_, used_ + size);
    release_beyond(most_held(most) - used_ - size);
    block.memory = map_pages(size);
    if (block.memory == nullptr) {
      release_beyond(0);
      block.memory = map_pages(size);
    }
    if (block.memory == nullptr) throw std::bad_alloc();
    most_used_ = most;
  }
  used_ += block.size;
  return block;
}

// The smallest block that fits, of equal ones the last that came back: it may still be in a cache.
bool HostMemory::reuse(size_t size, Block& found) {
  size_t best = blocks_.size();
  for (size_t i = blocks_.size(); i-- > 0;)
    if (fits(blocks_[i].size, size) &&
        (best == blocks_.size() || blocks_[i].size < blocks_[best].size))
      best = i;
  if (best == blocks_.size()) return false;
  found = blocks_[best];
  blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(best));
  kept_ -= found.size;
  return true;
}

void HostMemory::give_back(Block block) noexcept {
  const std::lock_guard held(mutex_);
  used_ -= block.size;
  try {
    blocks_.push_back(block);
    kept_ += block.size;
  } catch (const std::bad_alloc&) {  // no memory to remember it by
    ::munmap(block.memory, block.size);
  }
}

// Returns to the system what has been kept for longest.
void HostMemory::release_beyond(size_t bytes) {
  size_t first = 0;
  for (; kept_ > bytes; ++first) {
    kept_ -= blocks_[first].size;
    ::munmap(blocks_[first].memory, blocks_[first].size);
  }
  blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(first));
}

}  // namespace dofla
