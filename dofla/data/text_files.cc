#include "dofla/data/text_files.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include <fcntl.h>
#include <glob.h>
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

// All texts in a folder and the folders in it; links to other folders are not followed.
std::vector<fs::path> texts_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::recursive_directory_iterator next(folder, error), end; !error && next != end;
       next.increment(error)) {
    const bool hidden = next->path().filename().string().starts_with('.');
    if (hidden && next->is_directory()) next.disable_recursion_pending();
    if (!hidden && next->is_regular_file() && kind_of(next->path())) found.push_back(next->path());
  }
  if (error) fail("{}: cannot read the folder: {}", folder.string(), error.message());
  if (found.empty())
    fail("{}: no text in this folder: expected .txt or .jsonl, optionally followed by .zst or .gz",
         folder.string());
  std::ranges::sort(found);
  return found;
}

// What a pattern with *, ? or […] stands for, in the order of names.
std::vector<fs::path> matches_of(const fs::path& pattern) {
  glob_t matches = {};
  const int result = ::glob(pattern.c_str(), GLOB_ERR, nullptr, &matches);
  std::vector<fs::path> found(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  ::globfree(&matches);
  if (result != 0 || found.empty()) fail("{}: no file has such a name", pattern.string());
  return found;
}

std::vector<fs::path> files_of(const fs::path& path) {
  std::error_code unreadable;
  if (fs::is_directory(path, unreadable)) return texts_in(path);
  const bool pattern = path.string().find_first_of("*?[") != std::string::npos;
  if (!pattern || fs::exists(path, unreadable)) return {path};
  std::vector<fs::path> all;
  for (const fs::path& match : matches_of(path))
    for (const fs::path& file : files_of(match)) all.push_back(file);
  return all;
}

}  // namespace

TextFiles::TextFiles(const std::vector<fs::path>& paths, uint64_t longest_pipe) {
  require(!paths.empty(), "TextFiles: no file given");
  for (const fs::path& path : paths)
    for (const fs::path& file : files_of(path))
      files_.push_back(is_pipe(file) ? from_pipe(file, longest_pipe) : from_name(file));
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
  const std::shared_ptr<const OpenFile> kept = unnamed_file("pipe");
  const OpenFile pipe(path);
  std::vector<char> chunk(size_t{256} << 10);
  uint64_t total = 0;
  while (const size_t size = pipe.read(chunk)) {
    total += size;
    if (total > longest)
      fail("{}: more than the {} bytes that are taken from a pipe; write it to a file first",
           path.string(), longest);
    kept->write(std::span(chunk).first(size));
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

std::shared_ptr<const OpenFile> TextFiles::raw(size_t i) const {
  const File& file = files_[i];
  return file.kept ? file.kept : std::make_shared<const OpenFile>(fs::path(file.name));
}

ByteReader TextFiles::open(size_t i) const {
  return open_bytes(raw(i), files_[i].compression, files_[i].name);
}

}  // namespace dofla
