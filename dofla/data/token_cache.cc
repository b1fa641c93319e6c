#include "dofla/data/token_cache.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include <sys/stat.h>

#include "dofla/core/error.h"
#include "dofla/core/hash.h"
#include "dofla/core/version.h"

namespace dofla {
namespace {

constexpr std::string_view kMagic = "dofla.tk";
constexpr int kFormat = 1;
constexpr size_t kEnds = size_t{64} << 10;    // bytes at each end of a text file, for the name
constexpr size_t kTail = 16 + kMagic.size();  // after the JSON
constexpr uint64_t kMostJson = uint64_t{1} << 28;
// A file that was changed so shortly before may be changed again without its times showing it.
constexpr int64_t kSettled = 2'000'000'000;  // nanoseconds

struct stat status_of(const OpenFile& file) {
  struct stat status = {};
  if (::fstat(file.fd(), &status) != 0)
    fail("{}: cannot read: {}", file.name(), std::strerror(errno));
  return status;
}

int64_t nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Reads at most `size` bytes; fewer at the end of the file.
std::string read_at(const OpenFile& file, uint64_t from, uint64_t size) {
  std::string bytes(size, '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const size_t got = file.read_at(std::span(bytes).subspan(done), from + done);
    if (got == 0) break;
    done += got;
  }
  bytes.resize(done);
  return bytes;
}

uint64_t hash_of(std::string_view bytes) {
  return xxh64(std::as_bytes(std::span(bytes)));
}

std::string hex(uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

std::string hash_of_ends(const OpenFile& file, uint64_t size) {
  const uint64_t last = std::max<uint64_t>(size, kEnds) - kEnds;
  return hex(hash_of(read_at(file, 0, kEnds) + read_at(file, last, kEnds)));
}

// A hash of the hashes of its parts.
std::string hash_of_all(const OpenFile& file) {
  constexpr size_t kPart = size_t{1} << 20;
  std::vector<uint64_t> parts;
  for (std::string part; !(part = read_at(file, parts.size() * kPart, kPart)).empty();)
    parts.push_back(hash_of(part));
  return hex(xxh64(std::as_bytes(std::span(parts))));
}

uint64_t number_at(std::string_view bytes, size_t at) {
  uint64_t number;
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

// What stands after the blocks of a token file.
struct Ending {
  Json json;
  std::string hashes;
};

// Throws Error unless all of it is there as it was written.
Ending read_ending(const OpenFile& file, int64_t bytes_per_token) {
  const auto size = static_cast<uint64_t>(status_of(file).st_size);
  if (size < kTail) fail("{}: truncated", file.name());
  const std::string tail = read_at(file, size - kTail, kTail);
  if (tail.size() < kTail || !tail.ends_with(kMagic))
    fail("{}: truncated, or no token file", file.name());
  const uint64_t json_size = number_at(tail, 0);
  if (json_size > std::min(kMostJson, size - kTail)) fail("{}: damaged at its end", file.name());
  const std::string text = read_at(file, size - kTail - json_size, json_size);
  const Json json = parse_json(text, file.name());
  const auto tokens = json.is_object() ? json.find("tokens") : json.end();
  if (!json.is_object() || tokens == json.end() || !tokens->is_number_unsigned())
    fail("{}: damaged at its end", file.name());
  const uint64_t before = size - kTail - json_size;  // blocks and hashes
  const auto bytes = tokens->get<uint64_t>() * static_cast<uint64_t>(bytes_per_token);
  const uint64_t blocks = bytes / TokenStore::kBlock + (bytes % TokenStore::kBlock != 0);
  if (tokens->get<uint64_t>() > before || bytes + blocks * sizeof(uint64_t) != before)
    fail("{}: damaged: it has not the size that {} tokens take", file.name(),
         tokens->get<uint64_t>());
  Ending ending = {json, read_at(file, bytes, before - bytes)};
  if (hash_of(ending.hashes + text) != number_at(tail, 8))
    fail("{}: damaged at its end", file.name());
  return ending;
}

}  // namespace

TokenCache::FileState TokenCache::state_of(const OpenFile& file) {
  const struct stat status = status_of(file);
  return {status.st_ino, nanoseconds(status.st_mtim), nanoseconds(status.st_ctim)};
}

TokenCache::TokenCache(const fs::path& folder, const TextFiles& text, Json settings)
    : text_(text), about_(std::move(settings)) {
  bytes_per_token_ = static_cast<int64_t>(bytes_per_token(about_.at("vocabulary").get<int64_t>()));
  // Other versions may read or encode text in another way.
  about_["format"] = kFormat;
  about_["version"] = version();
  about_["files"] = Json::array();
  for (size_t i = 0; i < text_.count(); ++i) {
    const auto file = text_.raw(i);
    const auto size = static_cast<uint64_t>(status_of(*file).st_size);
    about_["files"].push_back({{"size", size},
                               {"ends", hash_of_ends(*file, size)},
                               {"lines", text_.kind(i) == TextKind::kJsonLines},
                               {"compression", static_cast<int>(text_.compression(i))}});
    states_.push_back(state_of(*file));
    settled_.push_back(states_.back().changed + kSettled < now());
    early_hashes_.push_back(settled_.back() ? "" : hash_of_all(*file));
  }
  file_ = folder / (hex(hash_of(about_.dump())) + ".tokens");
}

void TokenCache::require_contents(const Json& files) const {
  if (files.empty() || files.size() > text_.count()) fail("of other text");
  for (size_t i = 0; i < files.size(); ++i) {
    const FileState then = {files[i].at("inode"), files[i].at("modified"), files[i].at("changed")};
    if (files[i].at("settled").get<bool>() && then == states_[i]) continue;
    if (files[i].at("hash") != hash_of_all(*text_.raw(i)))
      fail("{} was changed since the tokens were made", text_.name(i));
  }
}

std::optional<TokenFileContents> TokenCache::find(std::string& defect) const {
  defect.clear();
  std::error_code error;
  if (!fs::exists(file_, error)) return std::nullopt;
  try {
    const auto file = std::make_shared<const OpenFile>(file_);
    Ending ending = read_ending(*file, bytes_per_token_);
    if (ending.json.at("about") != about_) fail("{}: of another text or tokenizer", file_.string());
    require_contents(ending.json.at("files"));
    std::vector<uint64_t> hashes(ending.hashes.size() / sizeof(uint64_t));
    std::memcpy(hashes.data(), ending.hashes.data(), ending.hashes.size());
    const Json& skipped = ending.json.at("skipped");
    return TokenFileContents{std::make_shared<TokenStore>(ending.json.at("tokens").get<int64_t>(),
                                                          static_cast<size_t>(bytes_per_token_),
                                                          std::move(hashes), file),
                             {skipped.at("count"), skipped.at("first")}};
  } catch (const Error& found) {
    defect = found.what();
  } catch (const Json::exception&) {  // whole, and still not as we write it
    defect = fmt::format("{}: damaged at its end", file_.string());
  }
  return std::nullopt;
}

std::string TokenCache::ending(std::span<const std::byte> hashes, int64_t tokens, size_t files,
                               const SkippedLines& skipped) const {
  Json states = Json::array();
  for (size_t i = 0; i < files; ++i) {
    const auto file = text_.raw(i);
    const FileState& state = states_[i];
    const std::string hash = hash_of_all(*file);
    if (state_of(*file) != state || (!settled_[i] && hash != early_hashes_[i]))
      fail("{}: was written to while it was read", text_.name(i));
    states.push_back({{"inode", state.inode},
                      {"modified", state.modified},
                      {"changed", state.changed},
                      {"settled", settled_[i] != 0},
                      {"hash", hash}});
  }
  std::string ending = Json({{"about", about_},
                             {"tokens", static_cast<uint64_t>(tokens)},
                             {"files", std::move(states)},
                             {"skipped", {{"count", skipped.count}, {"first", skipped.first}}}})
                           .dump(-1, ' ', true, Json::error_handler_t::replace);
  std::string checked(reinterpret_cast<const char*>(hashes.data()), hashes.size());
  const uint64_t tail[] = {ending.size(), hash_of(checked += ending)};
  return ending.append(reinterpret_cast<const char*>(tail), sizeof(tail)).append(kMagic);
}

}  // namespace dofla
