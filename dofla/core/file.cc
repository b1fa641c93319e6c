#include "dofla/core/file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dofla/core/error.h"

namespace dofla {
namespace {

constexpr std::string_view kAside = ".partial-";  // in the names of what is not yet whole

[[noreturn]] void fail_with_errno(const fs::path& path, std::string_view action) {
  fail("{}: cannot {}: {}", path.string(), action, std::strerror(errno));
}

// A file open for reading. Unless a pipe is welcome, opening does not wait, not even for the writer
// of a pipe that stands where a file should.
class Descriptor {
 public:
  Descriptor(const fs::path& path, Input input)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | (input == Input::kFile ? O_NONBLOCK : 0))) {
    if (fd_ < 0) fail_with_errno(path, "open");
    struct stat status = {};
    if (::fstat(fd_, &status) != 0) fail_with_errno(path, "read");
    const bool pipe = S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode);
    if (!S_ISREG(status.st_mode) && !(pipe && input == Input::kFileOrPipe)) {
      ::close(fd_);
      fail("{}: not a regular file", path.string());
    }
    size_ = pipe ? 0 : static_cast<size_t>(status.st_size);
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  size_t size() const { return size_; }  // 0 of a pipe

 private:
  int fd_;
  size_t size_ = 0;
};

// Makes a rename durable where the file system can; the rename itself has happened already.
void sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

// Makes something new beside `target`: calls create(name) with one name after the other until one
// is free. Neither a file left by a crash nor one that somebody planted is ever written to.
template <class Create>
fs::path make_aside(const fs::path& target, std::string_view action, const Create& create) {
  for (int attempt = 0;; ++attempt) {
    fs::path aside = target;
    aside += fmt::format("{}{}-{}", kAside, ::getpid(), attempt);
    if (create(aside.c_str())) return aside;
    if (errno != EEXIST) fail_with_errno(target, action);
  }
}

}  // namespace

std::string read_text(const fs::path& path, size_t limit, Input input) {
  const Descriptor file(path, input);
  const size_t size = file.size();
  const auto refuse = [&](size_t found) {
    fail("{}: {} bytes, more than the {} allowed", path.string(), found, limit);
  };
  if (size > limit) refuse(size);
  std::string text;
  // One byte more than is expected, so that the end is seen; a pipe tells no size.
  size_t done = 0;
  for (size_t space = size + 1;; space = std::max(done + (size_t{64} << 10), 2 * done)) {
    text.resize(std::min(space, limit + 1));
    while (done < text.size()) {
      const ssize_t got = ::read(file.get(), text.data() + done, text.size() - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_with_errno(path, "read");
      if (got == 0) {
        text.resize(done);
        return text;
      }
      done += static_cast<size_t>(got);
    }
    if (done > limit) refuse(done);
  }
}

void prepare_place(const fs::path& path) {
  if (!path.has_filename()) fail("\"{}\": not a name for a new file or folder", path.string());
  std::error_code error;
  if (fs::is_directory(path, error))
    fail("{}: is a folder; expected the name of a file to write", path.string());
  if (path.has_parent_path() && !fs::is_directory(path.parent_path(), error)) {
    fs::create_directories(path.parent_path(), error);
    if (error)
      fail("{}: cannot create this folder: {}", path.parent_path().string(), error.message());
  }
  const WholeFile trial(path);  // never committed
}

WholeFile::WholeFile(const fs::path& path) : path_(path) {
  aside_ = make_aside(path_, "write", [this](const char* name) {
    fd_ = ::open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    return fd_ >= 0;
  });
  ::flock(fd_, LOCK_EX | LOCK_NB);  // for remove_abandoned(); where it fails nothing else does
}

WholeFile::~WholeFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(aside_.c_str());
}

void WholeFile::reserve(int64_t bytes) {
  int status = EINTR;
  while (status == EINTR) status = ::posix_fallocate(fd_, 0, bytes);
  if (status != 0)
    fail("{}: cannot write {:.1f} MB: {}", path_.string(), static_cast<double>(bytes) / 1e6,
         std::strerror(status));
}

void WholeFile::write(const void* data, size_t size) {
  const char* from = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t put = ::write(fd_, from, size);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_with_errno(path_, "write");
    from += put;
    size -= static_cast<size_t>(put);
  }
}

void WholeFile::read_back(void* to, size_t size, uint64_t from) const {
  char* next = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t got = ::pread(fd_, next, size, static_cast<off_t>(from));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_with_errno(path_, "read");
    if (got == 0) fail("{}: became shorter while it was written", path_.string());
    next += got;
    from += static_cast<uint64_t>(got);
    size -= static_cast<size_t>(got);
  }
}

void WholeFile::commit() {
  if (::fsync(fd_) != 0) fail_with_errno(path_, "write");
  if (::rename(aside_.c_str(), path_.c_str()) != 0) fail_with_errno(path_, "write");
  ::close(fd_);
  fd_ = -1;
  sync_folder(path_.parent_path());
}

void remove_abandoned(const fs::path& folder) {
  std::error_code error;  // what cannot be removed stays
  for (fs::directory_iterator next(folder, error), end; !error && next != end;
       next.increment(error)) {
    const fs::path& path = next->path();
    if (path.filename().string().find(kAside) == std::string::npos) continue;
    const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) continue;
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) ::unlink(path.c_str());
    ::close(fd);
  }
}

void write_whole(const fs::path& path, std::string_view contents) {
  WholeFile file(path);
  file.write(contents.data(), contents.size());
  file.commit();
}

NewFolder::NewFolder(const fs::path& target) : target_(target) {
  if (!target_.has_filename()) target_ = target_.parent_path();  // "out/" means "out"
  std::error_code error;
  if (fs::exists(fs::symlink_status(target_, error)))
    fail("{}: exists already; choose another name or remove it", target_.string());
  aside_ = make_aside(target_, "create", [](const char* name) { return ::mkdir(name, 0755) == 0; });
}

NewFolder::~NewFolder() {
  std::error_code error;
  if (!committed_) fs::remove_all(aside_, error);
}

void NewFolder::commit() {
  sync_folder(aside_);
  if (::rename(aside_.c_str(), target_.c_str()) != 0) fail_with_errno(target_, "create");
  committed_ = true;
  sync_folder(target_.parent_path());
}

}  // namespace dofla
