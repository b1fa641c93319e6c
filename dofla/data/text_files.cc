#include "dofla/data/text_files.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dofla/core/error.h"

namespace dofla {
namespace {

// A pipe, or a descriptor of the shell's, which has no ending that would say what is in it.
bool is_pipe(const fs::path& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return false;  // open() says why
  const bool shell = path.string().starts_with("/dev/") && S_ISREG(status.st_mode);
  return S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode) || shell;
}

Compression compression_of(const fs::path& path) {
  if (path.extension() == ".zst") return Compression::kZstd;
  if (path.extension() == ".gz") return Compression::kGzip;
  return Compression::kNone;
}

std::optional<TextKind> kind_of(const fs::path& path) {
  const fs::path name =
      compression_of(path) == Compression::kNone ? path.filename() : path.filename().stem();
  if (name.extension() == ".txt") return TextKind::kText;
  if (name.extension() == ".jsonl") return TextKind::kJsonLines;
  return std::nullopt;
}

// A file that nobody else can open and that is gone when it is closed, whatever ends the program.
std::shared_ptr<const OpenFile> unnamed_file() {
  std::error_code error;
  const fs::path folder = fs::temp_directory_path(error);
  if (error) fail("no folder for temporary files: {}; set TMPDIR", error.message());
  std::string name = (folder / "dofla-pipe-XXXXXX").string();
  const int fd = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) fail("{}: cannot create a temporary file: {}", folder.string(), std::strerror(errno));
  ::unlink(name.c_str());
  return std::make_shared<const OpenFile>(fd, "temporary file in " + folder.string());
}

void write_all(const OpenFile& file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(file.fd(), bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("{}: cannot write: {}", file.name(), std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(put));
  }
}

Compression compression_in(const ByteReader& bytes) {
  char start[4] = {};
  size_t size = 0;
  while (size < sizeof(start)) {
    const size_t got = bytes(std::span(start).subspan(size));
    if (got == 0) break;
    size += got;
  }
  const std::string_view signature(start, size);
  if (signature == "\x28\xB5\x2F\xFD") return Compression::kZstd;
  return signature.starts_with("\x1F\x8B") ? Compression::kGzip : Compression::kNone;
}

TextKind kind_in(const ByteReader& bytes) {
  char next = ' ';
  while (bytes(std::span(&next, 1)) == 1)
    if (std::string_view(" \t\r\n").find(next) == std::string_view::npos) break;
  return next == '{' ? TextKind::kJsonLines : TextKind::kText;
}

}  // namespace

TextFiles::TextFiles(const std::vector<fs::path>& paths, uint64_t longest_pipe) {
  require(!paths.empty(), "TextFiles: no file given");
  for (const fs::path& path : paths)
    files_.push_back(is_pipe(path) ? from_pipe(path, longest_pipe) : from_name(path));
}

TextFiles::File TextFiles::from_name(const fs::path& path) {
  const std::optional<TextKind> kind = kind_of(path);
  if (!kind)
    fail(
        "{}: not a kind of text that is read here: expected .txt or .jsonl, optionally followed by "
        ".zst or .gz",
        path.string());
  return {path.string(), *kind, compression_of(path), nullptr};
}

TextFiles::File TextFiles::from_pipe(const fs::path& path, uint64_t longest) {
  const std::shared_ptr<const OpenFile> kept = unnamed_file();
  const OpenFile pipe(path);
  std::vector<char> chunk(size_t{256} << 10);
  uint64_t total = 0;
  while (const size_t size = pipe.read(chunk)) {
    total += size;
    if (total > longest)
      fail("{}: more than the {} bytes that are taken from a pipe; write it to a file first",
           path.string(), longest);
    write_all(*kept, {chunk.data(), size});
  }
  const auto from_start = [&](Compression compression) {
    return open_bytes(kept, compression, path.string());
  };
  File file = {path.string(), TextKind::kText, compression_of(path), kept};
  const std::optional<TextKind> kind = kind_of(path);
  if (!kind) file.compression = compression_in(from_start(Compression::kNone));
  file.kind = kind ? *kind : kind_in(from_start(file.compression));
  return file;
}

ByteReader TextFiles::open(size_t i) const {
  const File& file = files_[i];
  const auto opened = file.kept ? file.kept : std::make_shared<const OpenFile>(fs::path(file.name));
  return open_bytes(opened, file.compression, file.name);
}

}  // namespace dofla
