#include "dofla/features/exact_key_set.h"

#include "dofla/checkpoint/config_fields.h"
#include "dofla/core/error.h"

namespace dofla {

ExactKeys read_exact_keys(const Json& json, const std::string& where) {
  if (json.is_null()) return {};
  if (!json.is_object()) fail("{}: expected an object or null, found {}", where, excerpt(json));
  const ConfigFields fields(json, where);
  ExactKeys exact;
  exact.keys = fields.size("keys");
  // From 0, which a size does not allow.
  const auto count = [&](const char* field) {
    return fields.number(field) == 0 ? int64_t{0} : fields.size(field);
  };
  exact.sinks = count("sinks");
  exact.recent = count("recent");
  exact.block = count("block");
  const auto policy = find_named<KeyPolicy>(fields.text("policy").value_or(""));
  if (!policy) fields.refuse("policy", "expected " + one_of_names<KeyPolicy>());
  exact.policy = *policy;
  exact.decay = fields.positive("decay");
  try {
    require_valid(exact);
  } catch (const std::invalid_argument& problem) {
    fail("{}: {}", where, problem.what());
  }
  return exact;
}

ExactKeys exact_keys_of(const ExactKeySet& set, size_t layer) {
  return layer < set.size() ? set[layer] : ExactKeys{};
}

Json to_json(const ExactKeys& exact) {
  if (exact.empty()) return nullptr;
  return {{"keys", exact.keys},   {"sinks", exact.sinks},         {"recent", exact.recent},
          {"block", exact.block}, {"policy", name(exact.policy)}, {"decay", exact.decay}};
}

Json to_json(const ExactKeySet& set) {
  Json json = Json::array();
  for (const ExactKeys& exact : set) json.push_back(to_json(exact));
  return json;
}

ExactKeySet read_exact_keys(const Json& json, int64_t layers, const std::string& where) {
  if (!json.is_array() || static_cast<int64_t>(json.size()) != layers)
    fail("{}: expected a list of {} layers, found {}", where, layers, excerpt(json));
  ExactKeySet set;
  for (const Json& layer : json)
    set.push_back(read_exact_keys(layer, fmt::format("{}: layer {}", where, set.size() + 1)));
  return set;
}

int64_t exact_key_bytes(const ExactKeySet& set, int64_t key_heads, int64_t width) {
  int64_t bytes = 0;
  for (const ExactKeys& exact : set) bytes += key_heads * exact_key_bytes(exact.keys, width);
  return bytes;
}

}  // namespace dofla
