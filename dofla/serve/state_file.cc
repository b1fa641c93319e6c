#include "dofla/serve/state_file.h"

#include <bit>
#include <cstring>

#include "dofla/core/error.h"
#include "dofla/core/fingerprint.h"
#include "dofla/core/saved_json.h"

namespace dofla {
namespace {

constexpr const char* kFormat = "dofla.state";
constexpr int64_t kVersion = 1;
constexpr size_t kLengthBytes = 8, kChecksumBytes = 16;

static_assert(std::endian::native == std::endian::little,
              "states are written as they lie in memory");

std::string checksum_of(std::string_view bytes) {
  Fingerprint print;
  print.add(std::as_bytes(std::span(bytes)));
  return print.text();
}

void append(const Tensor& tensor, Json& list, std::string& data) {
  list.push_back({{"dtype", name(tensor.dtype())}, {"shape", tensor.shape()}});
  data.append(static_cast<const char*>(tensor.raw()), static_cast<size_t>(tensor.bytes()));
}

// Hands out the tensors that a header lists, one after another.
class TensorReader {
 public:
  TensorReader(const Json& list, std::string_view data, std::string_view where)
      : list_(list), data_(data), where_(where) {}

  // In the type of the model, which may be another one than the file's.
  Tensor next(const Shape& shape, DType type) {
    if (at_ == list_.size()) fail("{}: it holds only {} tensors", where_, at_);
    const Json& entry = list_[at_++];
    const auto stored = entry.contains("dtype") && entry["dtype"].is_string()
                            ? find_named<DType>(entry["dtype"].get<std::string>())
                            : std::nullopt;
    if (!stored || !is_float(*stored) || !entry.contains("shape") || entry["shape"] != Json(shape))
      fail("{}: tensor {}: expected {}, found {}", where_, at_ - 1, to_string(shape),
           excerpt(entry));
    Tensor tensor(shape, *stored);
    const auto size = static_cast<size_t>(tensor.bytes());
    if (size > data_.size()) fail("{}: it ends in tensor {}", where_, at_ - 1);
    std::memcpy(tensor.mutable_raw(), data_.data(), size);
    data_.remove_prefix(size);
    return tensor.to(type);
  }
  void require_end() const {
    if (at_ != list_.size() || !data_.empty())
      fail("{}: it holds more than the {} tensors of a state", where_, at_);
  }

 private:
  const Json& list_;
  std::string_view data_;
  const std::string where_;
  size_t at_ = 0;
};

// The whole number json[field] from `least` to `most`.
int64_t number_in(const Json& json, std::string_view field, int64_t least, int64_t most,
                  std::string_view where) {
  const auto found = json.find(field);
  if (found == json.end() || !found->is_number_integer() || *found < least || *found > most)
    fail("{}: {}: expected a whole number from {} to {}", where, field, least, most);
  return found->get<int64_t>();
}

// Of a cache [B, H, T, D] on the CPU, of any type.
Tensor first_tokens(const Tensor& cache, int64_t tokens) {
  const int64_t heads = cache.size(0) * cache.size(1), width = cache.size(3);
  Tensor out({cache.size(0), cache.size(1), tokens, width}, cache.dtype());
  const int64_t row = width * size_in_bytes(cache.dtype());
  for (int64_t h = 0; h < heads; ++h)
    std::memcpy(static_cast<std::byte*>(out.mutable_raw()) + h * tokens * row,
                static_cast<const std::byte*>(cache.raw()) + h * cache.size(2) * row,
                static_cast<size_t>(tokens * row));
  return out;
}

}  // namespace

StateFormat::StateFormat(const Transformer& model, std::string fingerprint)
    : fingerprint_(std::move(fingerprint)),
      vocabulary_(model.config().vocabulary),
      width_(model.config().width),
      most_tokens_(model.most_tokens()),
      like_(model.new_state()) {
  model.reserve(like_, 1, 1);
  for (int64_t i = 0; i < model.config().layers; ++i)
    like_.layer(i).transform([&](const Tensor& tensor) {
      grows_.push_back(model.attention(i).grows());
      return tensor;
    });
  like_ = like_.transform([](const Tensor& tensor) { return tensor.to(Device()); });
}

std::string StateFormat::write(const Snapshot& snapshot) const {
  Json header = {{"format", kFormat},       {"version", kVersion},
                 {"model", fingerprint_},   {"tokens", snapshot.tokens},
                 {"read", snapshot.read()}, {"hidden", snapshot.hidden.defined()},
                 {"tensors", Json::array()}};
  std::string data;
  size_t at = 0;
  // Of a cache only what was read: the rest of its memory may hold other texts.
  for (const Tensor& tensor : snapshot.state.tensors())
    append(grows_[at++] ? first_tokens(tensor, snapshot.read()) : tensor, header["tensors"], data);
  if (snapshot.hidden.defined()) append(snapshot.hidden.to(DType::kF32), header["tensors"], data);
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), kLengthBytes);
  bytes += text;
  bytes += data;
  return bytes + checksum_of(bytes);
}

Snapshot StateFormat::read(std::string_view bytes, std::string_view where) const {
  if (bytes.size() < kLengthBytes + kChecksumBytes ||
      bytes.substr(bytes.size() - kChecksumBytes) !=
          checksum_of(bytes.substr(0, bytes.size() - kChecksumBytes)))
    fail("{}: this is no state, or a damaged one: its checksum is wrong; fetch it again", where);
  bytes.remove_suffix(kChecksumBytes);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  bytes.remove_prefix(kLengthBytes);
  if (length > bytes.size())
    fail("{}: a header of {} bytes is longer than all of it", where, length);
  const Json header = parse_json(bytes.substr(0, length), where);
  require_format(header, kFormat, kVersion, where);
  const auto model = header.find("model");
  if (model == header.end() || *model != fingerprint_)
    fail("{}: it is a state of another model: {}, this one is {}", where,
         model == header.end() ? "null" : excerpt(*model), fingerprint_);

  Snapshot snapshot;
  const auto tokens = header.find("tokens");
  if (tokens == header.end() || !tokens->is_array()) fail("{}: tokens: expected a list", where);
  for (const Json& id : *tokens) {
    if (!id.is_number_integer() || id < 0 || id >= vocabulary_)
      fail("{}: tokens: {} is not a token of the model", where, excerpt(id));
    snapshot.tokens.push_back(id.get<int64_t>());
  }
  const int64_t count = std::ssize(snapshot.tokens);
  const int64_t read = number_in(header, "read", 1, std::min(count, most_tokens_), where);
  const bool hidden = header.value("hidden", Json()) == Json(true);
  if (count - read > (hidden ? 0 : 1))
    fail("{}: read: {} of {} tokens, where one at most may be left", where, read, count);
  const auto list = header.find("tensors");
  if (list == header.end() || !list->is_array()) fail("{}: tensors: expected a list", where);
  TensorReader reader(*list, bytes.substr(length), where);
  size_t at = 0;
  snapshot.state = like_.transform([&](const Tensor& like) {
    Shape shape = like.shape();
    if (grows_[at++]) shape[2] = read;
    return reader.next(shape, like.dtype());
  });
  if (hidden) snapshot.hidden = reader.next({1, width_}, DType::kF32);
  reader.require_end();
  snapshot.state.set_positions({read});
  return snapshot;
}

}  // namespace dofla
