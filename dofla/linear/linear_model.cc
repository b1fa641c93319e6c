#include "dofla/linear/linear_model.h"

#include <algorithm>

#include "dofla/checkpoint/parameters.h"
#include "dofla/core/error.h"
#include "dofla/core/version.h"
#include "dofla/linear/hybrid_attention.h"
#include "dofla/linear/student_files.h"
#include "dofla/ops/linear_attention.h"

namespace dofla {
namespace {

constexpr const char* kBlock = "linear_attention";
constexpr int64_t kVersion = 1;

[[noreturn]] void bad_block(const Checkpoint& checkpoint, const std::string& reason) {
  fail("{}: {}: {}", (checkpoint.folder() / "config.json").string(), kBlock, reason);
}

std::vector<std::vector<int64_t>> read_counts(const Checkpoint& checkpoint, const Json& block,
                                              FeatureMap map) {
  const ModelConfig& config = checkpoint.config();
  const int64_t heads = feature_heads(map, config.heads, config.kv_heads);
  const std::string expected = fmt::format(
      "features: expected {} lists of {} whole numbers from 1 to {}, or null for a "
      "layer with softmax attention",
      config.layers, heads, int64_t{1} << 20);
  const auto found = block.find("features");
  if (found == block.end() || !found->is_array() ||
      static_cast<int64_t>(found->size()) != config.layers)
    bad_block(checkpoint, expected);
  std::vector<std::vector<int64_t>> counts;
  for (const Json& layer : *found) {
    if (layer.is_null()) {
      counts.emplace_back();
      continue;
    }
    if (!layer.is_array() || static_cast<int64_t>(layer.size()) != heads)
      bad_block(checkpoint, expected);
    std::vector<int64_t>& row = counts.emplace_back();
    for (const Json& count : layer) {
      if (!count.is_number_integer() || count < 1 || count > (int64_t{1} << 20))
        bad_block(checkpoint, expected);
      row.push_back(count.get<int64_t>());
    }
  }
  const bool none = std::ranges::all_of(counts, [](const auto& row) { return row.empty(); });
  if (none && !block.contains("exact_keys"))
    bad_block(checkpoint, "features: no layer has any, nor exact keys");
  return counts;
}

Json counts_or_null(const FeatureSet& features) {
  Json json = Json::array();
  for (const Features& layer : features.layers)
    json.push_back(layer.empty() ? Json() : Json(layer.counts));
  return json;
}

// A body whose queries and keys are in the features' coordinates already.
Transformer assemble(const Checkpoint& body, const FeatureSet& features, const Device& device,
                     DType gpu_weights) {
  std::vector<std::unique_ptr<Attention>> attention;
  for (size_t i = 0; i < features.layers.size(); ++i)
    attention.push_back(make_attention(body.config(), features.layers[i].to(device),
                                       exact_keys_of(features.exact, i)));
  return Transformer(body, std::move(attention), device, gpu_weights);
}

template <class Enum>
Enum read_name(const Checkpoint& checkpoint, const Json& block, const char* field) {
  const Json value = block.value(field, Json());
  const auto found = value.is_string() ? find_named<Enum>(value.get<std::string>()) : std::nullopt;
  if (!found) bad_block(checkpoint, fmt::format("{}: expected {}", field, one_of_names<Enum>()));
  return *found;
}

}  // namespace

bool is_linear(const Checkpoint& checkpoint) {
  return checkpoint.config_json().contains(kBlock);
}

Transformer make_linear_model(const Checkpoint& teacher, const FeatureSet& features,
                              const Device& device, DType gpu_weights) {
  return assemble(in_coordinates(teacher, features.coordinates), features, device, gpu_weights);
}

FeatureSet load_features(const Checkpoint& checkpoint) {
  if (!is_linear(checkpoint))
    fail("{}: not a linear-attention model: config.json has no {} block",
         checkpoint.folder().string(), kBlock);
  const Json& block = checkpoint.config_json()[kBlock];
  if (!block.is_object()) bad_block(checkpoint, "expected an object");
  if (!block.contains("version") || block["version"] != kVersion)
    bad_block(checkpoint,
              fmt::format("version: expected {}; a newer dofla may have written it", kVersion));
  const auto map = read_name<FeatureMap>(checkpoint, block, "feature_map");
  FeatureSetForm form = {
      .map = map, .coordinates = Coordinates::kRaw, .counts = read_counts(checkpoint, block, map)};
  // Students of 0.1.0 know no other coordinates than their teacher's.
  if (block.contains("coordinates"))
    form.coordinates = read_name<Coordinates>(checkpoint, block, "coordinates");
  if (block.contains("exact_keys"))
    form.exact = read_exact_keys(
        block["exact_keys"], checkpoint.config().layers, checkpoint.config().kv_heads,
        fmt::format("{}: {}: exact_keys", (checkpoint.folder() / "config.json").string(), kBlock));
  return from_tensors(form, checkpoint.config(), [&](const std::string& name, const Shape& shape) {
    return checkpoint.tensor(name, shape);
  });
}

Transformer load_model(const Checkpoint& checkpoint, const Device& device, DType gpu_weights) {
  if (!is_linear(checkpoint)) return Transformer(checkpoint, device, gpu_weights);
  return assemble(checkpoint, load_features(checkpoint).clone(), device, gpu_weights);
}

void write_linear_model(const fs::path& folder, const Checkpoint& teacher,
                        const FeatureSet& features, const Json& about) {
  NamedTensors tensors;
  const Checkpoint body = in_coordinates(teacher, features.coordinates);
  for (const std::string& name : body.names())
    if (!name.starts_with(kBlock) && !is_superfluous(body.config(), name))
      tensors.emplace_back(name, body.tensor(name));
  for (auto& named : to_tensors(features.to(Device()))) tensors.push_back(std::move(named));
  write_student_tensors(folder, body.config(), tensors);
  teacher.require_unchanged();

  Json block = about;
  block["version"] = kVersion;
  block["dofla"] = version();
  block["feature_map"] = name(features.map);
  block["coordinates"] = name(features.coordinates.kind);
  block["features"] = counts_or_null(features);
  if (!features.exact.empty()) block["exact_keys"] = to_json(features.exact);
  write_student_config(folder, teacher.config_json(), block);
  copy_companions(teacher.folder(), folder);
}

void write_trained_model(const fs::path& folder, const Checkpoint& source, const Transformer& model,
                         const Json& about) {
  const bool linear = is_linear(source);
  require(linear || parameters(model, {.features = true}).empty(),
          "write_trained_model: {} is not where the model comes from", source.folder().string());
  NamedTensors tensors = parameters(model, {.weights = true, .features = true});
  for (auto& [name, tensor] : tensors) tensor = tensor.to(Device()).to(DType::kF32);
  if (linear)
    for (auto& named : to_tensors({.layers = {}, .coordinates = load_features(source).coordinates}))
      tensors.push_back(std::move(named));
  Json config = source.config_json();
  for (const char* key : {"torch_dtype", "dtype"})
    if (config.contains(key)) config[key] = "float32";
  config["training"] = about;
  config["training"]["dofla"] = version();
  if (linear) {
    write_student_tensors(folder, source.config(), tensors);
    write_student_config(folder, config, config[kBlock]);
  } else {
    write_safetensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
    write_whole(folder / "config.json", config.dump(2) + "\n");
  }
  copy_companions(source.folder(), folder);
}

int64_t state_bytes(const FeatureSet& features, const ModelConfig& config) {
  int64_t bytes = 0;
  for (size_t i = 0; i < features.layers.size(); ++i)
    bytes += token_cost(features, config, i, 0).bytes;
  return bytes;
}

TokenCost token_cost(const FeatureSet& features, const ModelConfig& config, size_t layer,
                     int64_t tokens) {
  if (keeps_softmax(features, layer)) return softmax_token_cost(config, tokens);
  const Features& own = features.layers[layer];
  return token_cost({.heads = config.heads,
                     .head_size = config.head_size,
                     .key_heads = config.kv_heads,
                     .keys = exact_keys_of(features.exact, layer).total_keys(config.kv_heads),
                     .feature_heads = feature_heads(features.map, config.heads, config.kv_heads),
                     .features = own.empty() ? 0 : own.total()});
}

int64_t cache_bytes(const ModelConfig& config, int64_t tokens) {
  return config.layers * softmax_token_cost(config, tokens).bytes;
}

bool keeps_softmax(const FeatureSet& features, size_t layer) {
  return features.layers[layer].empty() && exact_keys_of(features.exact, layer).empty();
}

int64_t growing_layers(const FeatureSet& features, const ModelConfig& config) {
  if (features.layers.empty()) return config.layers;
  int64_t layers = 0;
  for (size_t i = 0; i < features.layers.size(); ++i) layers += keeps_softmax(features, i) ? 1 : 0;
  return layers;
}

int64_t sequence_bytes(const FeatureSet& features, const ModelConfig& config, int64_t tokens) {
  return state_bytes(features, config) +
         cache_bytes(config, tokens) / config.layers * growing_layers(features, config);
}

}  // namespace dofla
