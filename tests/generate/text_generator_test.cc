#include "dofla/generate/text_generator.h"

#include <gtest/gtest.h>

#include "dofla/core/error.h"
#include "dofla/linear/linear_model.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

class TextGeneration : public testing::Test {
 protected:
  const fs::path folder = fs::path(DOFLA_SOURCE_DIR) / "tests/models/stories260K";
  const Checkpoint checkpoint{folder};
  const std::optional<Tokenizer> tokenizer = Tokenizer::load(folder);
  const Transformer model{checkpoint};

  static GenerateOptions options(int64_t max_tokens, double temperature) {
    GenerateOptions options;
    options.max_tokens = max_tokens;
    options.stop_at_end_of_text = false;
    options.sampler.temperature = temperature;
    return options;
  }
  TokenIds ids_of(const Prompt& prompt, const GenerateOptions& how) const {
    TextGenerator generator(model, tokenizer, prompt, how);
    TokenIds ids;
    while (const std::optional<Piece> piece = generator.next()) ids.push_back(piece->id);
    return ids;
  }
};

TEST_F(TextGeneration, TextIsThatOfTheTokensAfterThePrompt) {
  const std::string prompt = "Once upon a time";
  // Hot, so that bytes come that form no character.
  for (const double temperature : {0.0, 30.0}) {
    TextGenerator generator(model, tokenizer, {.text = prompt}, options(40, temperature));
    TokenIds all = generator.prompt();
    std::string text;
    while (const std::optional<Piece> piece = generator.next()) {
      EXPECT_EQ(generator.done(), std::ssize(generator.result().ids) == 40);
      all.push_back(piece->id);
      text += piece->text;
    }
    EXPECT_EQ(tokenizer->decode(all, true), prompt + text);
    EXPECT_EQ(generator.result().stopped, StopReason::kMaxTokens);
    EXPECT_FALSE(generator.next());
  }
}

TEST_F(TextGeneration, PromptIsATextItsIdsOrTheBeginningOfADocument) {
  const GenerateOptions how = options(8, 0);
  const TokenIds ids = tokenizer->encode("Once upon");
  EXPECT_EQ(ids_of({.text = "Once upon"}, how), generate(model, ids, how).ids);
  EXPECT_EQ(ids_of({.ids = ids}, how), generate(model, ids, how).ids);
  const TokenIds beginning = {*model.config().begin_of_text};
  EXPECT_EQ(ids_of({}, how), generate(model, beginning, how).ids);
  EXPECT_THROW(TextGenerator(model, std::nullopt, {.text = "Once"}, how), std::invalid_argument);
}

TEST_F(TextGeneration, TheEndOfTextHasNoText) {
  GenerateOptions how = options(5, 0);
  const TokenIds ids = ids_of({.text = "Once upon a time"}, how);
  // The same model, for which the third of these tokens ends a text.
  const test::ScratchFolder scratch;
  fs::copy(folder, scratch.path());
  Json config = checkpoint.config_json();
  config["eos_token_id"] = ids[2];
  fs::remove(scratch.path() / "config.json");
  write_whole(scratch.path() / "config.json", config.dump());
  const Transformer ending{Checkpoint(scratch.path())};
  for (const bool stop : {true, false}) {
    how.stop_at_end_of_text = stop;
    TextGenerator generator(ending, tokenizer, {.text = "Once upon a time"}, how);
    std::vector<std::string> texts;
    while (const std::optional<Piece> piece = generator.next()) texts.push_back(piece->text);
    EXPECT_EQ(generator.result().ids, stop ? TokenIds(ids.begin(), ids.begin() + 3) : ids);
    EXPECT_EQ(generator.result().stopped, stop ? StopReason::kEndOfText : StopReason::kMaxTokens);
    EXPECT_EQ(texts[2].empty(), stop);
  }
}

TEST_F(TextGeneration, WhatFailedDoesNotGoOn) {
  Generator generator(model, {model.config().vocabulary}, options(4, 0));
  EXPECT_THROW(generator.next(), std::invalid_argument);
  EXPECT_TRUE(generator.done());
  EXPECT_FALSE(generator.next());
}

}  // namespace
}  // namespace dofla
