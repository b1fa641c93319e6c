// The exact keys of every layer of a model, as plans and students keep them.
#pragma once

#include <string>
#include <vector>

#include "dofla/core/json.h"
#include "dofla/ops/exact_keys.h"

namespace dofla {

// One a layer; or none at all, where no layer has any.
using ExactKeySet = std::vector<ExactKeys>;

ExactKeys exact_keys_of(const ExactKeySet& set, size_t layer);

// {"keys","sinks","recent","block","policy","decay"}, or null where there are none; keys is a list
// where key heads have different numbers.
Json to_json(const ExactKeys& exact);
// Throws Error "where: …" on what is not that, or holds numbers that no cache can have.
ExactKeys read_exact_keys(const Json& json, const std::string& where);

// A list of these, one for every layer.
Json to_json(const ExactKeySet& set);
// Throws Error "where: …" on what is not such a list for so many layers and key heads, or holds
// numbers that no cache can have.
ExactKeySet read_exact_keys(const Json& json, int64_t layers, int64_t key_heads,
                            const std::string& where);

}  // namespace dofla
