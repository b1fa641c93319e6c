#include "dofla/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>

#include "dofla/core/error.h"
#include "dofla/core/json.h"

namespace dofla {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr std::string_view kMetadata = "__metadata__";
constexpr std::string_view kFactors = "_scale";   // what their names end in
constexpr uint64_t kLongestHeader = 100'000'000;  // the limit of the reference implementation

struct Extent {
  uint64_t begin;
  uint64_t end;
  std::string_view name;
};

std::string_view header_text(std::span<const std::byte> file, const std::string& where) {
  if (file.size() < kLengthBytes)
    fail("{}: {} bytes is too short for a safetensors file", where, file.size());
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kLongestHeader)
    fail("{}: header of {} bytes, more than the {} allowed", where, length, kLongestHeader);
  if (length > file.size() - kLengthBytes)
    fail("{}: header of {} bytes reaches past the end of the file ({} bytes)", where, length,
         file.size());
  return {reinterpret_cast<const char*>(file.data()) + kLengthBytes, length};
}

Shape read_shape(const Json& entry, const std::string& where) {
  const auto found = entry.find("shape");
  if (found == entry.end() || !found->is_array()) fail("{}: no shape", where);
  Shape shape;
  for (const Json& extent : *found) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() > INT64_MAX)
      fail("{}: bad shape {}", where, excerpt(*found));
    shape.push_back(extent.get<int64_t>());
  }
  return shape;
}

DType read_dtype(const Json& entry, const std::string& where) {
  const auto found = entry.find("dtype");
  if (found == entry.end() || !found->is_string()) fail("{}: no dtype", where);
  const auto dtype = find_named<DType>(found->get_ref<const std::string&>());
  if (!dtype)
    fail("{}: unknown dtype {}; expected {}", where, excerpt(*found), one_of_names<DType>());
  return *dtype;
}

std::pair<uint64_t, uint64_t> read_offsets(const Json& entry, uint64_t data_size,
                                           const std::string& where) {
  const auto found = entry.find("data_offsets");
  const bool sound = found != entry.end() && found->is_array() && found->size() == 2 &&
                     (*found)[0].is_number_unsigned() && (*found)[1].is_number_unsigned();
  if (!sound) fail("{}: no data_offsets", where);
  const auto begin = (*found)[0].get<uint64_t>();
  const auto end = (*found)[1].get<uint64_t>();
  if (begin > end || end > data_size)
    fail("{}: offsets {} reach outside the {} bytes of data", where, excerpt(*found), data_size);
  return {begin, end};
}

std::map<std::string, std::string> read_metadata(const Json& entry, const std::string& where) {
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string())
      fail("{}: {}: expected a string, found {}", where, printable(key), excerpt(value));
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

// Tensors must lie end to end: no byte shared, none unaccounted for.
void check_cover(std::vector<Extent> extents, uint64_t data_size, const std::string& where) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  uint64_t at = 0;
  for (const Extent& extent : extents) {
    if (extent.begin < at)
      fail("{}: {}: overlaps the tensor before it", where, printable(extent.name));
    if (extent.begin > at) fail("{}: bytes {} to {} belong to no tensor", where, at, extent.begin);
    at = extent.end;
  }
  if (at != data_size) fail("{}: bytes {} to {} belong to no tensor", where, at, data_size);
}

// A header of odd length, or bytes before floats, leave a tensor at an address that its type cannot
// be read from.
Tensor aligned(const Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.raw());
  const auto unit = static_cast<uintptr_t>(size_in_bytes(tensor.dtype()));
  return address % unit == 0 ? tensor : tensor.clone();
}

}  // namespace

Safetensors::Safetensors(const fs::path& path)
    : path_(path), file_(std::make_shared<const MappedFile>(path)) {
  const std::string where = path.string();
  const std::string_view header = header_text(file_->bytes(), where);
  const std::span<const std::byte> data = file_->bytes().subspan(kLengthBytes + header.size());

  const Json entries = parse_json(header, where + ": header");
  if (!entries.is_object()) fail("{}: header is not a JSON object", where);
  std::vector<Extent> extents;
  for (const auto& [name, entry] : entries.items()) {
    const std::string at = where + ": " + printable(name);
    if (!entry.is_object()) fail("{}: not a JSON object", at);
    if (name == kMetadata) {
      metadata_ = read_metadata(entry, at);
      continue;
    }
    const DType dtype = read_dtype(entry, at);
    Shape shape = read_shape(entry, at);
    const auto [begin, end] = read_offsets(entry, data.size(), at);
    int64_t bytes = size_in_bytes(dtype);
    for (int64_t extent : shape)
      if (__builtin_mul_overflow(bytes, extent, &bytes))
        fail("{}: shape {} has too many elements", at, to_string(shape));
    if (static_cast<uint64_t>(bytes) != end - begin)
      fail("{}: {} of {} takes {} bytes, found {}", at, dofla::name(dtype), to_string(shape), bytes,
           end - begin);
    extents.push_back({begin, end, name});
    tensors_[name] = Tensor::borrow(data.data() + begin, std::move(shape), dtype, file_);
  }
  check_cover(std::move(extents), data.size(), where);
  join_factors();
}

void Safetensors::join_factors() {
  std::vector<std::string> joined;
  for (auto& [name, tensor] : tensors_) {
    const auto found = tensors_.find(name + std::string(kFactors));
    if (tensor.dtype() != DType::kI8 || tensor.rank() != 2 || found == tensors_.end()) continue;
    const Tensor& factors = found->second;
    const Shape rows = {tensor.size(0), 1}, columns = {1, tensor.size(1)};
    if (factors.dtype() != DType::kF32 || (factors.shape() != rows && factors.shape() != columns))
      fail("{}: {}: expected F32 {} or {}, found {} {}", path_.string(), printable(found->first),
           to_string(rows), to_string(columns), dofla::name(factors.dtype()),
           to_string(factors.shape()));
    tensor = Tensor::scaled(tensor, aligned(factors));
    joined.push_back(found->first);
  }
  for (const std::string& name : joined) tensors_.erase(name);
}

std::vector<std::string> Safetensors::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

Tensor Safetensors::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) fail("{}: no tensor {}", path_.string(), name);
  return aligned(found->second);
}

void write_safetensors(const fs::path& path, NamedTensors tensors,
                       const std::map<std::string, std::string>& metadata) {
  for (size_t i = 0, count = tensors.size(); i < count; ++i)
    if (tensors[i].second.is_scaled())
      tensors.emplace_back(tensors[i].first + std::string(kFactors), tensors[i].second.factors());
  // Wide types first, as the reference implementation does: then every tensor is aligned.
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return size_in_bytes(a.second.dtype()) > size_in_bytes(b.second.dtype());
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  int64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    require(tensor.defined() && name != kMetadata && !header.contains(name),
            "write_safetensors: {}: undefined tensor, reserved name or name given twice", name);
    header[name] = {{"dtype", dofla::name(tensor.dtype())},
                    {"shape", tensor.shape()},
                    {"data_offsets", {at, at + tensor.bytes()}}};
    at += tensor.bytes();
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception&) {
    throw std::invalid_argument("write_safetensors: names and metadata must be UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data start aligned for whoever maps the file

  WholeFile file(path);
  const uint64_t length = text.size();
  file.write(&length, kLengthBytes);
  file.write(text.data(), text.size());
  for (const auto& [name, tensor] : tensors)
    file.write(tensor.raw(), static_cast<size_t>(tensor.bytes()));
  file.commit();
}

}  // namespace dofla
