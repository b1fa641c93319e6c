#include "dofla/linear/student_files.h"

#include "dofla/core/error.h"
#include "dofla/linear/transformers_files.h"

namespace dofla {
namespace {

constexpr const char* kCompanions[] = {
    "tokenizer.json",  "tokenizer_config.json",   "vocab.json",
    "merges.txt",      "special_tokens_map.json", "added_tokens.json",
    "tokenizer.model", "chat_template.jinja",     "generation_config.json"};

// GPT-2's bare model is saved without "transformer.", its language model with it.
std::string full_name(const ModelConfig& config, const std::string& name) {
  const bool bare = config.model_type == "gpt2" && !name.starts_with("transformer.") &&
                    !name.starts_with("linear_attention.") && name != "lm_head.weight";
  return bare ? "transformer." + name : name;
}

}  // namespace

void write_student_tensors(const fs::path& folder, const ModelConfig& config,
                           const NamedTensors& tensors) {
  NamedTensors renamed;
  for (const auto& [name, tensor] : tensors) renamed.emplace_back(full_name(config, name), tensor);
  write_safetensors(folder / "model.safetensors", renamed, {{"format", "pt"}});
}

Json as_student_config(const Json& source) {
  if (source.value("model_type", "") == "dofla") return source;
  Json config = {{"model_type", "dofla"}, {"teacher", source}};
  for (const char* own : {"linear_attention", "training"}) {
    if (source.contains(own)) config[own] = source[own];
    config["teacher"].erase(own);
  }
  for (const char* type : {"torch_dtype", "dtype"})  // how Transformers loads the weights
    if (source.contains(type)) config[type] = source[type];
  return config;
}

void write_student_config(const fs::path& folder, const Json& source, const Json& block) {
  Json config = as_student_config(source);
  config["architectures"] = {"DoflaForCausalLM"};
  config["auto_map"] = {{"AutoConfig", "configuration_dofla.DoflaConfig"},
                        {"AutoModelForCausalLM", "modeling_dofla.DoflaForCausalLM"}};
  config["linear_attention"] = block;
  write_whole(folder / "config.json", config.dump(2) + "\n");
  for (const auto& [name, text] : kTransformersFiles) write_whole(folder / name, std::string(text));
}

void copy_companions(const fs::path& from, const fs::path& to) {
  for (const char* name : kCompanions) {
    std::error_code error;
    if (!fs::exists(from / name)) continue;
    fs::copy_file(from / name, to / name, error);
    if (error) fail("{}: cannot copy: {}", (from / name).string(), error.message());
  }
}

}  // namespace dofla
