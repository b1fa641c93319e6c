#include "dofla/core/file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dofla/core/error.h"

namespace dofla {
namespace {

[[noreturn]] void fail_with_errno(const fs::path& path, std::string_view action) {
  fail("{}: cannot {}: {}", path.string(), action, std::strerror(errno));
}

// A file open for reading. Opening does not wait, not even for the writer of a pipe that stands
// where a file should.
class Descriptor {
 public:
  explicit Descriptor(const fs::path& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
    if (fd_ < 0) fail_with_errno(path, "open");
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

size_t regular_file_size(const Descriptor& file, const fs::path& path) {
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) fail_with_errno(path, "read");
  if (!S_ISREG(status.st_mode)) fail("{}: not a regular file", path.string());
  return static_cast<size_t>(status.st_size);
}

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
    aside += fmt::format(".partial-{}-{}", ::getpid(), attempt);
    if (create(aside.c_str())) return aside;
    if (errno != EEXIST) fail_with_errno(target, action);
  }
}

}  // namespace

MappedFile::MappedFile(const fs::path& path) {
  const Descriptor file(path);
  size_ = regular_file_size(file, path);
  if (size_ == 0) return;  // mmap refuses empty files
  void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (memory == MAP_FAILED) fail_with_errno(path, "map");
  data_ = static_cast<const std::byte*>(memory);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

std::string read_text(const fs::path& path, size_t limit) {
  const Descriptor file(path);
  const size_t size = regular_file_size(file, path);
  if (size > limit) fail("{}: {} bytes, more than the {} allowed", path.string(), size, limit);
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t got = ::read(file.get(), text.data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_with_errno(path, "read");
    if (got == 0) break;  // the file shrank under us: hand back what there is
    done += static_cast<size_t>(got);
  }
  text.resize(done);
  return text;
}

WholeFile::WholeFile(const fs::path& path) : path_(path) {
  aside_ = make_aside(path_, "write", [this](const char* name) {
    fd_ = ::open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    return fd_ >= 0;
  });
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

void WholeFile::commit() {
  if (::fsync(fd_) != 0) fail_with_errno(path_, "write");
  if (::rename(aside_.c_str(), path_.c_str()) != 0) fail_with_errno(path_, "write");
  ::close(fd_);
  fd_ = -1;
  sync_folder(path_.parent_path());
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
    fail("{}: exists already; choose another folder or remove it", target_.string());
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
