#include "dofla/checkpoint/parameters.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace dofla {
namespace {

bool is_buffer(std::string_view name) {
  for (const std::string_view ending : {".attn.bias", ".attn.masked_bias", ".attention.bias",
                                        ".attention.masked_bias", ".rotary_emb.inv_freq"})
    if (name.ends_with(ending)) return true;
  return false;
}

bool is_output_head(std::string_view name) {
  return name == "lm_head.weight" || name == "embed_out.weight";
}

}  // namespace

Parameters count_parameters(const Checkpoint& checkpoint) {
  Parameters parameters;
  std::map<DType, int64_t> bytes_of;
  for (const std::string& name : checkpoint.names()) {
    if (is_buffer(name) || (checkpoint.config().tied_head && is_output_head(name))) continue;
    const Tensor tensor = checkpoint.tensor(name);
    if (!is_float(tensor.dtype())) continue;
    parameters.count += tensor.count();
    parameters.bytes += tensor.bytes();
    bytes_of[tensor.dtype()] += tensor.bytes();
  }
  const auto most = std::max_element(bytes_of.begin(), bytes_of.end(),
                                     [](auto& a, auto& b) { return a.second < b.second; });
  if (most != bytes_of.end()) parameters.dtype = most->first;
  return parameters;
}

}  // namespace dofla
