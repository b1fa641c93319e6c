#include "dofla/data/byte_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "dofla/core/error.h"

namespace dofla {
namespace {

constexpr size_t kInputChunk = size_t{64} << 10;

size_t checked(ssize_t got, const std::string& name) {
  if (got < 0) fail("{}: cannot read: {}", name, std::strerror(errno));
  return static_cast<size_t>(got);
}

// One reader's place in a file.
class RawFile {
 public:
  RawFile(std::shared_ptr<const OpenFile> file, std::string name)
      : file_(std::move(file)), name_(std::move(name)) {}

  size_t read(std::span<char> to) {
    const size_t got = file_->read_at(to, at_);
    at_ += got;
    return got;
  }
  const std::string& name() const { return name_; }

 private:
  std::shared_ptr<const OpenFile> file_;
  std::string name_;
  uint64_t at_ = 0;
};

// One or several zstd frames in a row.
class ZstdFile {
 public:
  explicit ZstdFile(RawFile file)
      : file_(std::move(file)), context_(ZSTD_createDCtx()), input_(kInputChunk) {
    if (!context_) throw std::bad_alloc();
  }

  size_t read(std::span<char> to) {
    ZSTD_outBuffer out = {to.data(), to.size(), 0};
    while (out.pos == 0) {
      if (in_.pos == in_.size) {
        in_ = {input_.data(), file_.read(input_), 0};
        // A frame may still hold output after its last input byte was taken, so an empty input
        // is an error only when decompression then makes no progress inside a frame.
        if (in_.size == 0 && frame_done_) return 0;
      }
      const bool at_end = in_.size == 0;
      const size_t left = ZSTD_decompressStream(context_.get(), &out, &in_);
      if (ZSTD_isError(left))
        fail("{}: corrupt zstd data: {}", file_.name(), ZSTD_getErrorName(left));
      frame_done_ = left == 0;
      if (at_end && out.pos == 0 && !frame_done_)
        fail("{}: truncated: the zstd data ends within a frame", file_.name());
    }
    return out.pos;
  }

 private:
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  RawFile file_;
  std::unique_ptr<ZSTD_DCtx, Free> context_;
  std::vector<char> input_;
  ZSTD_inBuffer in_ = {nullptr, 0, 0};
  bool frame_done_ = true;
};

// One or several gzip members in a row.
class GzipFile {
 public:
  explicit GzipFile(RawFile file) : file_(std::move(file)), input_(kInputChunk) {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    if (inflateInit2(&stream_, kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  ~GzipFile() { inflateEnd(&stream_); }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  size_t read(std::span<char> to) {
    stream_.next_out = reinterpret_cast<Bytef*>(to.data());
    stream_.avail_out = static_cast<uInt>(std::min(to.size(), size_t{1} << 30));
    const uInt room = stream_.avail_out;
    while (stream_.avail_out == room) {
      if (stream_.avail_in == 0) {
        stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
        stream_.avail_in = static_cast<uInt>(file_.read(input_));
        if (stream_.avail_in == 0 && member_done_) return 0;
      }
      if (member_done_) inflateReset(&stream_);
      const bool at_end = stream_.avail_in == 0;
      const int status = inflate(&stream_, Z_NO_FLUSH);
      member_done_ = status == Z_STREAM_END;
      if (status == Z_BUF_ERROR && at_end)
        fail("{}: truncated: the gzip data ends within a member", file_.name());
      if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)
        fail("{}: corrupt gzip data: {}", file_.name(),
             stream_.msg != nullptr ? stream_.msg : zError(status));
    }
    return room - stream_.avail_out;
  }

 private:
  RawFile file_;
  std::vector<char> input_;
  z_stream stream_ = {};
  bool member_done_ = true;
};

template <class File>
ByteReader reader_of(RawFile raw) {
  return [file = std::make_shared<File>(std::move(raw))](std::span<char> to) {
    return file->read(to);
  };
}

}  // namespace

OpenFile::OpenFile(const fs::path& path)
    : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), name_(path.string()) {
  if (fd_ < 0) fail("{}: cannot open: {}", name_, std::strerror(errno));
}

OpenFile::~OpenFile() {
  ::close(fd_);
}

size_t OpenFile::read(std::span<char> to) const {
  ssize_t got = -1;
  do got = ::read(fd_, to.data(), to.size());
  while (got < 0 && errno == EINTR);
  return checked(got, name_);
}

size_t OpenFile::read_at(std::span<char> to, uint64_t from) const {
  ssize_t got = -1;
  do got = ::pread(fd_, to.data(), to.size(), static_cast<off_t>(from));
  while (got < 0 && errno == EINTR);
  return checked(got, name_);
}

void OpenFile::write(std::span<const char> from) const {
  while (!from.empty()) {
    const ssize_t put = ::write(fd_, from.data(), from.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("{}: cannot write: {}", name_, std::strerror(errno));
    from = from.subspan(static_cast<size_t>(put));
  }
}

std::shared_ptr<const OpenFile> unnamed_file(const std::string& purpose) {
  std::error_code error;
  const fs::path folder = fs::temp_directory_path(error);
  if (error) fail("no folder for temporary files: {}; set TMPDIR", error.message());
  std::string name = (folder / ("dofla-" + purpose + "-XXXXXX")).string();
  const int fd = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) fail("{}: cannot create a temporary file: {}", folder.string(), std::strerror(errno));
  ::unlink(name.c_str());
  return std::make_shared<const OpenFile>(fd, "temporary file in " + folder.string());
}

ByteReader open_bytes(std::shared_ptr<const OpenFile> file, Compression compression,
                      const std::string& name) {
  RawFile raw(std::move(file), name);
  if (compression == Compression::kZstd) return reader_of<ZstdFile>(std::move(raw));
  if (compression == Compression::kGzip) return reader_of<GzipFile>(std::move(raw));
  return reader_of<RawFile>(std::move(raw));
}

}  // namespace dofla
