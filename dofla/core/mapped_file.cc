#include "dofla/core/mapped_file.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dofla/core/error.h"

namespace dofla {
namespace {

// Every map that exists, in a list that a signal handler can walk at any time: entries are used
// again but never freed, and one without a map holds no address.
struct Entry {
  std::atomic<bool> taken = true;
  std::atomic<uintptr_t> begin = 0;
  std::atomic<uintptr_t> end = 0;
  std::string path;  // not changed while begin < end
  Entry* next = nullptr;
};
std::atomic<Entry*> entries = nullptr;

Entry* free_entry() {
  for (Entry* entry = entries; entry != nullptr; entry = entry->next)
    if (!entry->taken.exchange(true)) return entry;
  auto* entry = new Entry;
  entry->next = entries;
  while (!entries.compare_exchange_weak(entry->next, entry)) {
  }
  return entry;
}

void add_entry(const void* data, size_t size, const std::string& path) {
  Entry* entry = free_entry();
  entry->path = path;
  entry->begin = reinterpret_cast<uintptr_t>(data);
  entry->end = entry->begin + size;
}

void remove_entry(const void* data) {
  for (Entry* entry = entries; entry != nullptr; entry = entry->next) {
    if (entry->begin != reinterpret_cast<uintptr_t>(data)) continue;
    entry->end = entry->begin = 0;
    entry->taken = false;
    return;
  }
}

struct stat status_of(int fd, const fs::path& path) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) fail("{}: cannot read: {}", path.string(), std::strerror(errno));
  return status;
}

}  // namespace

MappedFile::MappedFile(const fs::path& path)
    : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (fd_ < 0) fail("{}: cannot open: {}", path.string(), std::strerror(errno));
  try {
    const struct stat status = status_of(fd_, path);
    if (!S_ISREG(status.st_mode)) fail("{}: not a regular file", path.string());
    size_ = static_cast<size_t>(status.st_size);
    modified_ = status.st_mtim;
    if (size_ == 0) return;  // mmap refuses empty files
    void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd_, 0);
    if (memory == MAP_FAILED) fail("{}: cannot map: {}", path.string(), std::strerror(errno));
    data_ = static_cast<const std::byte*>(memory);
    add_entry(data_, size_, path.string());
  } catch (...) {
    close();
    throw;
  }
}

MappedFile::~MappedFile() {
  close();
}

void MappedFile::close() {
  if (data_ != nullptr) {
    remove_entry(data_);
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
  ::close(fd_);
}

void MappedFile::require_unchanged() const {
  const struct stat now = status_of(fd_, path_);
  const bool same = static_cast<size_t>(now.st_size) == size_ &&
                    now.st_mtim.tv_sec == modified_.tv_sec &&
                    now.st_mtim.tv_nsec == modified_.tv_nsec;
  if (!same)
    fail(
        "{}: was written to while it was in use, so the result may be of a mixture of two files; "
        "run again",
        path_.string());
}

const char* mapped_file_at(const void* address) noexcept {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (const Entry* entry = entries; entry != nullptr; entry = entry->next)
    if (entry->begin <= at && at < entry->end) return entry->path.c_str();
  return nullptr;
}

}  // namespace dofla
