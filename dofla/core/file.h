// Files as hostile and fragile things: read whole, written whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace dofla {

namespace fs = std::filesystem;

// What may stand under a name. Users may name a pipe, and its writer is waited for; in a model's
// folder a pipe would only make the program wait forever.
enum class Input { kFile, kFileOrPipe };

// The whole file as text. Throws Error if it cannot be read or is larger than `limit` bytes.
std::string read_text(const fs::path& path, size_t limit = size_t{1} << 30,
                      Input input = Input::kFile);

// For results that take long: throws Error now rather than then if nothing can be written under
// this name. Folders on the way to it are created.
void prepare_place(const fs::path& path);

// A file that appears whole or not at all: written aside, synced, then renamed over `path` by
// commit(). Without commit() the destructor removes what was written and `path` stays as it was.
class WholeFile {
 public:
  explicit WholeFile(const fs::path& path);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  // Throws Error if the disk has not enough space for so much.
  void reserve(int64_t bytes);
  void write(const void* data, size_t size);
  // What was written from byte `from` on; throws Error if that is less than `size` bytes.
  void read_back(void* to, size_t size, uint64_t from) const;
  void commit();

 private:
  fs::path path_;
  fs::path aside_;
  int fd_ = -1;
};

// Removes what crashed writers of WholeFiles left in a folder. Those that live hold a lock.
void remove_abandoned(const fs::path& folder);

void write_whole(const fs::path& path, std::string_view contents);

// A folder that appears whole or not at all. Write into path(), then commit(); without commit()
// the destructor removes everything. Throws Error if `target` exists already.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& target);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const fs::path& path() const { return aside_; }
  void commit();

 private:
  fs::path target_;
  fs::path aside_;
  bool committed_ = false;
};

}  // namespace dofla
