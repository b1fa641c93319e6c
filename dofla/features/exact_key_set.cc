#include "dofla/features/exact_key_set.h"

#include <algorithm>

#include "dofla/checkpoint/config_fields.h"
#include "dofla/core/error.h"

namespace dofla {

namespace {

// One number, or one for every key head.
void read_keys(const ConfigFields& fields, ExactKeys& exact) {
  const Json* keys = fields.find("keys");
  if (keys == nullptr || !keys->is_array()) {
    exact.keys = fields.size("keys");
    return;
  }
  constexpr int64_t kMost = int64_t{1} << 31;
  for (const Json& head : *keys) {
    if (!head.is_number_unsigned() || head.get<uint64_t>() > kMost)
      fields.refuse("keys", "expected a whole number for every key head");
    exact.head_keys.push_back(head.get<int64_t>());
  }
  if (exact.head_keys.empty()) fields.refuse("keys", "expected a number for every key head");
  exact.keys = *std::ranges::max_element(exact.head_keys);
}

}  // namespace

ExactKeys read_exact_keys(const Json& json, const std::string& where) {
  if (json.is_null()) return {};
  if (!json.is_object()) fail("{}: expected an object or null, found {}", where, excerpt(json));
  const ConfigFields fields(json, where);
  ExactKeys exact;
  read_keys(fields, exact);
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
  const Json keys = exact.head_keys.empty() ? Json(exact.keys) : Json(exact.head_keys);
  return {{"keys", keys},         {"sinks", exact.sinks},         {"recent", exact.recent},
          {"block", exact.block}, {"policy", name(exact.policy)}, {"decay", exact.decay}};
}

Json to_json(const ExactKeySet& set) {
  Json json = Json::array();
  for (const ExactKeys& exact : set) json.push_back(to_json(exact));
  return json;
}

ExactKeySet read_exact_keys(const Json& json, int64_t layers, int64_t key_heads,
                            const std::string& where) {
  if (!json.is_array() || static_cast<int64_t>(json.size()) != layers)
    fail("{}: expected a list of {} layers, found {}", where, layers, excerpt(json));
  ExactKeySet set;
  for (const Json& layer : json) {
    const std::string in_layer = fmt::format("{}: layer {}", where, set.size() + 1);
    set.push_back(read_exact_keys(layer, in_layer));
    if (const auto heads = static_cast<int64_t>(set.back().head_keys.size());
        heads != 0 && heads != key_heads)
      fail("{}: keys: expected a number for each of {} key heads, found {}", in_layer, key_heads,
           heads);
  }
  return set;
}

}  // namespace dofla
