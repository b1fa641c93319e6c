#include "dofla/train/teacher_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "dofla/checkpoint/config_fields.h"
#include "dofla/core/error.h"
#include "dofla/core/hash.h"

namespace dofla {
namespace {

constexpr std::string_view kMagic = "dofla teacher 1\n";
constexpr uint64_t kLongestHeader = 1 << 20;

// Logarithms are whole numbers of 1/2048 nats below 0, which is off by at most 0.00025 nats; the
// largest stands for nothing at all.
constexpr double kLevels = 2048;
constexpr uint16_t kNothing = std::numeric_limits<uint16_t>::max();

uint16_t to_level(float log_probability) {
  const double level = std::round(-kLevels * static_cast<double>(log_probability));
  return level < kNothing ? static_cast<uint16_t>(std::max(level, 0.0)) : kNothing;
}

float from_level(uint16_t level) {
  return level == kNothing ? -std::numeric_limits<float>::infinity()
                           : static_cast<float>(-level / kLevels);
}

template <class T>
void put(std::vector<char>& to, T value) {
  const auto* bytes = reinterpret_cast<const char*>(&value);
  to.insert(to.end(), bytes, bytes + sizeof(T));
}

template <class T>
T take(const char*& from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  from += sizeof(T);
  return value;
}

uint64_t hash_of(std::span<const char> bytes) {
  return xxh64(std::as_bytes(bytes));
}

uint64_t hash_of(const TokenIds& ids) {
  return xxh64(std::as_bytes(std::span(ids)));
}

bool short_ids(const TeacherFileHeader& header) {
  return header.vocabulary <= 1 << 16;
}

int64_t bytes_of_block(const TeacherFileHeader& header) {
  const int64_t id_bytes = short_ids(header) ? 2 : 4;
  return header.length * (header.top * (id_bytes + 2) + 2) + 16;
}

// So that a row sums to 1 after its rounding.
void normalise_row(std::span<float> log_probability, float& log_rest) {
  double sum = std::exp(static_cast<double>(log_rest));
  for (const float x : log_probability) sum += std::exp(static_cast<double>(x));
  const auto shift = static_cast<float>(std::log(sum));
  for (float& x : log_probability) x -= shift;
  log_rest -= shift;
}

}  // namespace

TeacherFileWriter::TeacherFileWriter(const fs::path& path, const TeacherFileHeader& header)
    : header_(header), file_(path) {
  const std::string json = Json{
      {"windows", header.windows},
      {"length", header.length},
      {"vocabulary", header.vocabulary},
      {"top", header.top},
      {"about", header.about}}.dump();
  file_.reserve(static_cast<int64_t>(json.size()) + header.windows * bytes_of_block(header));
  std::vector<char> start(kMagic.begin(), kMagic.end());
  put<uint64_t>(start, json.size());
  start.insert(start.end(), json.begin(), json.end());
  put(start, hash_of(json));
  file_.write(start.data(), start.size());
}

void TeacherFileWriter::append(const TokenIds& ids, const TopTokens& rows) {
  require(
      std::ssize(ids) == header_.length && rows.rows() == header_.length && rows.top == header_.top,
      "a teacher file of {} tokens a window and {} a token: found {} and {}", header_.length,
      header_.top, rows.rows(), rows.top);
  std::vector<char> block;
  block.reserve(static_cast<size_t>(bytes_of_block(header_)));
  for (const int32_t token : rows.tokens)
    short_ids(header_) ? put(block, static_cast<uint16_t>(token)) : put(block, token);
  for (const float x : rows.log_probability) put(block, to_level(x));
  for (const float x : rows.log_rest) put(block, to_level(x));
  put(block, hash_of(ids));
  put(block, hash_of(block));
  file_.write(block.data(), block.size());
  ++written_;
}

void TeacherFileWriter::commit() {
  require(written_ == header_.windows, "a teacher file of {} windows: {} were written",
          header_.windows, written_);
  file_.commit();
}

TeacherFile::TeacherFile(const fs::path& path) : file_(path) {
  const auto bytes = static_cast<int64_t>(fs::file_size(path));
  std::vector<char> start(kMagic.size() + sizeof(uint64_t));
  const char* at = start.data() + kMagic.size();
  if (bytes < std::ssize(start)) fail("{}: no file of a teacher: too short", file_.name());
  read_at(start, 0);
  const auto length = take<uint64_t>(at);
  if (!std::equal(kMagic.begin(), kMagic.end(), start.begin()) || length > kLongestHeader)
    fail("{}: no file of a teacher, as dofla teach writes it", file_.name());
  std::vector<char> json(length + sizeof(uint64_t));
  first_block_ = std::ssize(start) + std::ssize(json);
  if (bytes < first_block_) fail("{}: is truncated: its header has no end", file_.name());
  read_at(json, std::ssize(start));
  const std::string text(json.data(), length);
  const char* end = json.data() + length;
  if (take<uint64_t>(end) != hash_of(text)) fail("{}: its header is damaged", file_.name());
  const Json header = parse_json(text, file_.name());
  const ConfigFields fields(header, file_.name());
  header_ = {.windows = fields.size("windows"),
             .length = fields.size("length"),
             .vocabulary = fields.size("vocabulary"),
             .top = fields.size("top"),
             .about = header.value("about", Json::object())};
  if (header_.top > header_.vocabulary) fields.refuse("top", "more tokens than the vocabulary has");
  const int64_t rest = bytes - first_block_, block = bytes_of_block(header_);
  if (rest / block != header_.windows || rest % block != 0)
    fail("{}: is truncated or longer than it says: expected {} windows of {} bytes, found {} bytes",
         file_.name(), header_.windows, block, rest);
}

void TeacherFile::read_at(std::span<char> to, int64_t from) const {
  if (file_.read_at(to, static_cast<uint64_t>(from)) != to.size())
    fail("{}: became shorter while it was read", file_.name());
}

void TeacherFile::require_windows(const WindowSet& windows) const {
  if (header_.length != windows.length())
    fail("{}: is of windows of {} tokens, not of {}", file_.name(), header_.length,
         windows.length());
  if (header_.windows < std::ssize(windows))
    fail("{}: has {} windows, and {} are trained on", file_.name(), header_.windows,
         windows.size());
  const int64_t block = bytes_of_block(header_);
  for (size_t i = 0; i < windows.size(); ++i) {
    char bytes[sizeof(uint64_t)];
    read_at(bytes, first_block_ + (static_cast<int64_t>(i) + 1) * block - 16);
    const char* at = bytes;
    if (take<uint64_t>(at) != hash_of(windows[i]))
      fail("{}: is of another text: window {} differs", file_.name(), i + 1);
  }
}

TopTokens TeacherFile::read(std::span<const int64_t> which) const {
  TopTokens all = {.top = header_.top};
  const int64_t entries = header_.length * header_.top;
  std::vector<char> block(static_cast<size_t>(bytes_of_block(header_)));
  for (const int64_t window : which) {
    require(window >= 0 && window < header_.windows, "window {} of {}", window, header_.windows);
    read_at(block, first_block_ + window * std::ssize(block));
    const char* end = block.data() + block.size() - sizeof(uint64_t);
    if (hash_of(std::span(block).first(block.size() - sizeof(uint64_t))) != take<uint64_t>(end))
      fail("{}: window {} is damaged", file_.name(), window + 1);
    const char* at = block.data();
    for (int64_t i = 0; i < entries; ++i) {
      const int64_t token = short_ids(header_) ? take<uint16_t>(at) : take<int32_t>(at);
      if (token < 0 || token >= header_.vocabulary)
        fail("{}: window {}: token {} of a vocabulary of {}", file_.name(), window + 1, token,
             header_.vocabulary);
      all.tokens.push_back(static_cast<int32_t>(token));
    }
    for (int64_t i = 0; i < entries; ++i)
      all.log_probability.push_back(from_level(take<uint16_t>(at)));
    for (int64_t i = 0; i < header_.length; ++i)
      all.log_rest.push_back(from_level(take<uint16_t>(at)));
  }
  const auto top = static_cast<size_t>(header_.top);
  for (size_t row = 0; row < all.log_rest.size(); ++row)
    normalise_row(std::span(all.log_probability).subspan(row * top, top), all.log_rest[row]);
  return all;
}

}  // namespace dofla
