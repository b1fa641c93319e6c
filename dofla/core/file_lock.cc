#include "dofla/core/file_lock.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dofla/core/error.h"

namespace dofla {
namespace {

// Whether the path still leads to the open file: whoever held the lock before may have removed it
// between our opening and our locking.
bool is_still_there(int fd, const fs::path& path) {
  struct stat open_file = {}, named = {};
  return ::fstat(fd, &open_file) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open_file.st_ino == named.st_ino && open_file.st_dev == named.st_dev;
}

std::string holder(int fd) {
  std::array<char, 32> text = {};
  int pid = 0;
  if (::pread(fd, text.data(), text.size() - 1, 0) <= 0 ||
      std::from_chars(text.data(), text.data() + text.size(), pid).ec != std::errc())
    return "another process";
  return fmt::format("process {}", pid);
}

}  // namespace

FileLock::FileLock(const fs::path& file, const std::string& what) : file_(file) {
  while (true) {
    fd_ = ::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd_ < 0) fail("{}: cannot open: {}", file_.string(), std::strerror(errno));
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      const std::string other = holder(fd_);
      ::close(fd_);
      if (error == EINTR) continue;
      if (error != EWOULDBLOCK) fail("{}: cannot lock: {}", file_.string(), std::strerror(error));
      fail("{}: {} is at work on it; wait until that has ended, or choose another name", what,
           other);
    }
    if (is_still_there(fd_, file_)) break;
    ::close(fd_);
  }
  const std::string pid = fmt::format("{}", ::getpid());
  // Only for the message that another process gives: a full disk does not matter here.
  [[maybe_unused]] const bool written =
      ::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, pid.data(), pid.size(), 0) > 0;
}

FileLock::~FileLock() {
  ::unlink(file_.c_str());  // while it is still locked: nobody else has it
  ::close(fd_);
}

}  // namespace dofla
