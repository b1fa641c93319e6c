// Which model a saved table or plan was made for: enough to refuse it for another one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "dofla/checkpoint/config_fields.h"
#include "dofla/checkpoint/hf_config.h"
#include "dofla/core/json.h"

namespace dofla {

struct ModelIdentity {
  std::string model_type;  // as in ModelConfig
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t head_size = 0;

  bool operator==(const ModelIdentity&) const = default;
};

ModelIdentity identity_of(const ModelConfig& config);
std::string to_string(const ModelIdentity& model);  // "gpt2 with 12 layers of 12 heads of size 64"

Json to_json(const ModelIdentity& model);
// Throws Error "where: field: …" on anything missing or out of range.
ModelIdentity read_identity(const Json& json, std::string_view where);

// The heads of a layer that a table or plan has something for, "feature_heads": all of them where
// the field is missing, as in files of version 0.1. Throws Error unless it divides the model's
// heads.
int64_t read_feature_heads(const ConfigFields& fields, const ModelIdentity& model);

}  // namespace dofla
