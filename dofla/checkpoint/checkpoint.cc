#include "dofla/checkpoint/checkpoint.h"

#include "dofla/core/error.h"
#include "dofla/core/json.h"

namespace dofla {
namespace {

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

bool present(const fs::path& path) {
  std::error_code error;  // a name too long for the file system is simply not there
  return fs::exists(path, error);
}

void check_folder(const fs::path& folder) {
  const auto holds = [&](std::string_view name) { return present(folder / name); };
  std::error_code error;
  if (!fs::is_directory(folder, error))
    fail("{}: not a folder; expected a Hugging Face model folder", folder.string());
  if (!holds("config.json"))
    fail("{}: no config.json; expected a Hugging Face model folder with config.json and {}",
         folder.string(), kSingle);
  if (holds(kSingle) || holds(kIndex)) return;
  if (holds("pytorch_model.bin") || holds("pytorch_model.bin.index.json"))
    fail("{}: only pytorch_model.bin; save the model as safetensors first", folder.string());
  fail("{}: no weights; expected {} or {}", folder.string(), kSingle, kIndex);
}

// A shard is a file of the folder itself: a name that leads elsewhere would let a downloaded
// model read any file.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

// The index's weight_map: which shard holds which tensor.
std::map<std::string, std::string> read_weight_map(const fs::path& path) {
  const Json index = load_json(path);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object() || map->empty())
    fail("{}: weight_map: expected an object from tensor names to file names", path.string());
  std::map<std::string, std::string> shard_of;
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string() || !is_plain_name(shard.get_ref<const std::string&>()))
      fail("{}: {}: expected a file name in the same folder, found {}", path.string(),
           printable(name), excerpt(shard));
    shard_of[name] = shard.get<std::string>();
  }
  return shard_of;
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& folder) : folder_(folder) {
  check_folder(folder);
  const fs::path config_path = folder / "config.json";
  config_json_ = load_json(config_path);
  config_ = read_config(config_json_, config_path.string());

  if (present(folder / kSingle)) {
    shards_.emplace_back(folder / kSingle);
    for (const std::string& name : shards_[0].names()) shard_of_[name] = 0;
    return;
  }
  const fs::path index = folder / kIndex;
  std::map<std::string, size_t> opened;
  for (const auto& [name, shard] : read_weight_map(index)) {
    const auto [at, fresh] = opened.try_emplace(shard, shards_.size());
    if (fresh) {
      if (!present(folder / shard))
        fail("{}: shard {} is missing from the folder", index.string(), printable(shard));
      shards_.emplace_back(folder / shard);
    }
    if (!shards_[at->second].contains(name))
      fail("{}: {}: not in {}", index.string(), printable(name), printable(shard));
    shard_of_[name] = at->second;
  }
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, shard] : shard_of_) names.push_back(name);
  return names;
}

void Checkpoint::require_unchanged() const {
  for (const Safetensors& shard : shards_) shard.require_unchanged();
}

Checkpoint Checkpoint::with(const NamedTensors& tensors) const {
  Checkpoint other = *this;
  for (const auto& [name, tensor] : tensors) {
    require_shape(tensor, this->tensor(name).shape(), name.c_str());
    other.replaced_.insert_or_assign(name, tensor);
  }
  return other;
}

Tensor Checkpoint::tensor(const std::string& name) const {
  const auto found = shard_of_.find(name);
  if (found == shard_of_.end())
    fail("{}: no tensor {}", (folder_ / (shards_.size() > 1 ? kIndex : kSingle)).string(), name);
  if (const auto other = replaced_.find(name); other != replaced_.end()) return other->second;
  return shards_[found->second].tensor(name);
}

Tensor Checkpoint::tensor(const std::string& name, const Shape& expected) const {
  Tensor tensor = this->tensor(name);
  const std::string where = shards_[shard_of_.at(name)].path().string();
  if (tensor.shape() != expected)
    fail("{}: {}: expected {}, found {}", where, name, to_string(expected),
         to_string(tensor.shape()));
  if (!is_float(tensor.dtype()) && !tensor.is_scaled())
    fail("{}: {}: expected F64, F32, F16, BF16 or I8 with its _scale, found {}", where, name,
         dofla::name(tensor.dtype()));
  return tensor;
}

}  // namespace dofla
