// A model that is served: its weights, its tokenizer, its chat template and the engine that runs
// it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dofla/checkpoint/tokenizer.h"
#include "dofla/serve/api_request.h"
#include "dofla/serve/chat_template.h"
#include "dofla/serve/engine.h"
#include "dofla/serve/state_store.h"
#include "dofla/serve/token_texts.h"

namespace dofla {

struct ServedModelOptions {
  std::string id = {};             // what requests call it
  std::string chat_template = {};  // its name; empty: what the folder says
  Device device = {};
  EngineOptions engine = {};
  int64_t state_memory = int64_t{1} << 30;  // bytes of named states
};

class ServedModel {
 public:
  // Throws Error if the folder holds no model with a tokenizer.
  ServedModel(const fs::path& folder, const ServedModelOptions& options);

  const std::string& id() const { return id_; }
  const Transformer& model() const { return model_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const TokenTexts& texts() const { return texts_; }
  Engine& engine() const { return *engine_; }
  StateStore& states() const { return *states_; }

  // Throw ApiError on a prompt that the model cannot take.
  TokenIds prompt_ids(const Prompt& prompt, bool may_be_empty) const;
  TokenIds chat_ids(const std::vector<ChatMessage>& messages) const;

  bool has_chat_template() const { return chat_.has_value(); }
  const std::string& no_chat_template() const { return no_chat_; }  // why, and what to do
  // The token that closes an answer in a conversation, or where that is none, its text.
  std::optional<int64_t> end_of_turn() const { return end_of_turn_; }
  std::optional<std::string> end_of_turn_text() const;

  OrderedJson describe() const;        // an entry of /v1/models
  OrderedJson tokenizer_info() const;  // of /tokenizer_info

 private:
  ServedModel(const Checkpoint& checkpoint, const ServedModelOptions& options);
  void check(const TokenIds& ids) const;
  void find_chat_template(const fs::path& folder, const std::string& name);

  std::string id_;
  int64_t created_;
  Tokenizer tokenizer_;
  Transformer model_;
  TokenTexts texts_;
  ChatTokens chat_tokens_;
  std::string jinja_;  // the folder's chat template
  std::optional<ChatTemplate> chat_;
  std::string no_chat_;
  std::optional<int64_t> end_of_turn_;
  std::string kind_;
  int64_t state_bytes_ = 0, bytes_per_token_ = 0;
  std::shared_ptr<StateStore> states_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace dofla
