#include "dofla/model/identity.h"

#include "dofla/core/error.h"

namespace dofla {

ModelIdentity identity_of(const ModelConfig& config) {
  return {config.model_type, config.layers, config.heads, config.head_size};
}

std::string to_string(const ModelIdentity& model) {
  return fmt::format("{} with {} layers of {} heads of size {}", printable(model.model_type),
                     model.layers, model.heads, model.head_size);
}

Json to_json(const ModelIdentity& model) {
  return {{"model_type", model.model_type},
          {"layers", model.layers},
          {"heads", model.heads},
          {"head_size", model.head_size}};
}

ModelIdentity read_identity(const Json& json, std::string_view where) {
  const ConfigFields fields(json, std::string(where));
  const auto model_type = fields.text("model_type");
  if (!model_type) fields.refuse("model_type", "missing");
  return {*model_type, fields.size("layers"), fields.size("heads"), fields.size("head_size")};
}

int64_t read_feature_heads(const ConfigFields& fields, const ModelIdentity& model) {
  const int64_t heads = fields.optional_size("feature_heads").value_or(model.heads);
  if (model.heads % heads != 0)
    fields.refuse("feature_heads",
                  fmt::format("{} do not divide the model's {} heads", heads, model.heads));
  return heads;
}

}  // namespace dofla
