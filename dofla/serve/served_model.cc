#include "dofla/serve/served_model.h"

#include <chrono>
#include <limits>

#include "dofla/core/error.h"
#include "dofla/linear/linear_model.h"

namespace dofla {
namespace {

constexpr int64_t kLargestConfig = int64_t{1} << 24;  // bytes of a chat template's file

Json tokenizer_config(const fs::path& folder) {
  const fs::path path = folder / "tokenizer_config.json";
  std::error_code unreadable;
  if (!fs::exists(path, unreadable)) return Json::object();
  Json config = load_json(path);
  if (!config.is_object()) fail("{}: expected an object", path.string());
  return config;
}

// "bos_token": "<s>", or {"content": "<s>", …}.
std::string token_field(const Json& config, const char* name) {
  const Json value = config.value(name, Json());
  if (value.is_string()) return value.get<std::string>();
  return value.is_object() ? value.value("content", "") : "";
}

// The Jinja text of a folder: a field, one of several in that field, or a file of its own.
std::string jinja_of(const fs::path& folder, const Json& config) {
  const Json value = config.value("chat_template", Json());
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array())
    for (const Json& one : value)
      if (one.is_object() && one.value("name", "") == "default") return one.value("template", "");
  const fs::path file = folder / "chat_template.jinja";
  std::error_code unreadable;
  return fs::exists(file, unreadable) ? read_text(file, kLargestConfig) : "";
}

}  // namespace

ServedModel::ServedModel(const fs::path& folder, const ServedModelOptions& options)
    : ServedModel(Checkpoint(folder), options) {}

ServedModel::ServedModel(const Checkpoint& checkpoint, const ServedModelOptions& options)
    : id_(options.id),
      created_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      tokenizer_(Tokenizer::load(checkpoint.folder())),
      model_(load_model(checkpoint, options.device)),
      texts_(tokenizer_) {
  const FeatureSet features = is_linear(checkpoint) ? load_features(checkpoint) : FeatureSet();
  kind_ = kind_of(features);
  if (is_linear(checkpoint) && growing_layers(features, model_.config()) > 0)
    kind_ = "partly " + kind_;
  state_bytes_ = sequence_bytes(features, model_.config(), 0);
  bytes_per_token_ = sequence_bytes(features, model_.config(), 1) - state_bytes_;
  find_chat_template(checkpoint.folder(), options.chat_template);
  EngineOptions engine = options.engine;
  states_ = std::make_shared<StateStore>(model_, fingerprint_of(checkpoint), options.state_memory);
  engine.states = states_;
  engine_ = std::make_unique<Engine>(model_, engine);
}

void ServedModel::find_chat_template(const fs::path& folder, const std::string& name) {
  const Json config = tokenizer_config(folder);
  const auto spelled = [&](const char* field, std::optional<int64_t> id) {
    const std::string token = token_field(config, field);
    return token.empty() && id ? tokenizer_.token(*id).value_or("") : token;
  };
  chat_tokens_ = {spelled("bos_token", model_.config().begin_of_text),
                  spelled("eos_token", model_.config().end_of_text)};
  if (!name.empty()) {
    chat_ = named_chat_template(name, chat_tokens_);
    if (!chat_) fail("chat template {}: expected {}", name, chat_template_names());
  } else if (jinja_ = jinja_of(folder, config); jinja_.empty()) {
    no_chat_ =
        fmt::format("model {} has no chat template: choose {} for it", id_, chat_template_names());
  } else if (chat_ = recognise_chat_template(jinja_, chat_tokens_); !chat_) {
    no_chat_ =
        fmt::format("model {}: its chat template is none that dofla knows ({}): choose {} for it",
                    id_, excerpt(jinja_.substr(0, 60)), chat_template_names());
  }
  if (chat_) end_of_turn_ = tokenizer_.token_id(chat_->end);
}

std::optional<std::string> ServedModel::end_of_turn_text() const {
  if (!chat_ || end_of_turn_ || chat_->end.empty()) return std::nullopt;
  return chat_->end;
}

void ServedModel::check(const TokenIds& ids) const {
  const int64_t vocabulary = model_.config().vocabulary;
  for (const int64_t id : ids)
    if (id < 0 || id >= vocabulary)
      refuse("prompt", "token id {} is outside of the model's vocabulary of {}", id, vocabulary);
  if (std::ssize(ids) > model_.most_tokens())
    throw ApiError(400,
                   fmt::format("the prompt has {} tokens, and the model's context {}: shorten it",
                               ids.size(), model_.most_tokens()),
                   "prompt", "context_length_exceeded");
}

TokenIds ServedModel::prompt_ids(const Prompt& prompt, bool may_be_empty) const {
  TokenIds ids;
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    ids = tokenizer_.encode(*text, /*add_special=*/!may_be_empty);
    const ModelConfig& config = model_.config();
    // An empty text is the beginning of a document.
    const std::optional<int64_t> begin =
        config.begin_of_text ? config.begin_of_text : config.end_of_text;
    if (ids.empty() && !may_be_empty && begin) ids = {*begin};
  } else {
    ids = std::get<std::vector<int64_t>>(prompt);
  }
  if (ids.empty() && !may_be_empty) refuse("prompt", "it is empty: give text or token ids");
  check(ids);
  return ids;
}

TokenIds ServedModel::chat_ids(const std::vector<ChatMessage>& messages) const {
  if (!chat_) throw ApiError(400, no_chat_, "messages", "no_chat_template");
  TokenIds ids;
  try {
    ids = tokenizer_.encode(render_chat(*chat_, messages));
  } catch (const std::invalid_argument& error) {
    throw ApiError(400, error.what(), "messages", "invalid_value");
  }
  check(ids);
  return ids;
}

OrderedJson ServedModel::describe() const {
  OrderedJson about = {{"kind", kind_},
                       {"context", nullptr},
                       {"vocabulary", model_.config().vocabulary},
                       {"chat_template", nullptr},
                       {"state_bytes", state_bytes_},
                       {"bytes_per_token", bytes_per_token_}};
  // A student without a cache that grows has no end.
  if (model_.most_tokens() <= std::numeric_limits<int32_t>::max())
    about["context"] = model_.most_tokens();
  if (chat_) about["chat_template"] = chat_->name;
  return {{"id", id_},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "dofla"},
          {"dofla", about}};
}

OrderedJson ServedModel::tokenizer_info() const {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return {{"tokenizer_class", "dofla"},
          {"vocab_size", tokenizer_.vocabulary()},
          {"bos_token", or_null(chat_tokens_.begin_of_text)},
          {"eos_token", or_null(chat_tokens_.end_of_text)},
          {"chat_template", or_null(jinja_)}};
}

}  // namespace dofla
