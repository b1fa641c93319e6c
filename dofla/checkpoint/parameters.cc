#include "dofla/checkpoint/parameters.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "dofla/core/error.h"
#include "dofla/core/json.h"

namespace dofla {
namespace {

constexpr std::string_view kLinear = "linear_attention";  // block of config.json, and its tensors

// What older versions of Transformers saved with a family's weights: causal masks, the number that
// masks with, and the frequencies of the rotary embedding.
std::vector<std::string_view> buffer_endings(std::string_view model_type) {
  if (model_type == "gpt2") return {".attn.bias", ".attn.masked_bias"};
  if (model_type == "gpt_neox")
    return {".attention.bias", ".attention.masked_bias", ".attention.rotary_emb.inv_freq"};
  return {".rotary_emb.inv_freq"};  // llama, mistral, qwen2, qwen3
}

}  // namespace

bool is_superfluous(const ModelConfig& config, std::string_view name) {
  if (config.tied_head && (name == "lm_head.weight" || name == "embed_out.weight")) return true;
  return std::ranges::any_of(buffer_endings(config.model_type),
                             [&](std::string_view ending) { return name.ends_with(ending); });
}

Parameters count_parameters(const Checkpoint& checkpoint) {
  Parameters parameters;
  std::map<DType, int64_t> bytes_of;
  for (const std::string& name : checkpoint.names()) {
    if (is_superfluous(checkpoint.config(), name)) continue;
    const Tensor tensor = checkpoint.tensor(name);
    if (!is_float(tensor.dtype()) && !tensor.is_scaled()) continue;
    parameters.count += tensor.count();
    parameters.bytes += tensor.bytes() + (tensor.is_scaled() ? tensor.factors().bytes() : 0);
    bytes_of[tensor.dtype()] += tensor.bytes();
  }
  const auto most = std::max_element(bytes_of.begin(), bytes_of.end(),
                                     [](auto& a, auto& b) { return a.second < b.second; });
  if (most != bytes_of.end()) parameters.dtype = most->first;
  return parameters;
}

void require_all_used(const Checkpoint& checkpoint, const NamedTensors& used) {
  std::set<std::string_view> known;
  for (const auto& [name, tensor] : used) known.insert(name);
  const bool linear = checkpoint.config_json().contains(kLinear);
  const std::vector<std::string> names = checkpoint.names();
  std::vector<std::string_view> unused;
  for (const std::string& name : names) {
    const bool feature = name.starts_with(fmt::format("{}.", kLinear));
    if (known.contains(name) || is_superfluous(checkpoint.config(), name) || (feature && linear))
      continue;
    unused.push_back(name);
  }
  if (unused.empty()) return;
  const std::string_view first = unused.front();
  if (first.starts_with(kLinear))
    fail(
        "{}: holds the features of a linear-attention model ({}), but its config.json has no {} "
        "block; expected the config.json that was written with it",
        checkpoint.folder().string(), printable(first), kLinear);
  fail(
      "{}: {} of {} tensors are not part of the {} of {} layers that config.json describes, {} "
      "the first; expected the config.json of these weights",
      checkpoint.folder().string(), unused.size(), names.size(), checkpoint.config().model_type,
      checkpoint.config().layers, printable(first));
}

}  // namespace dofla
