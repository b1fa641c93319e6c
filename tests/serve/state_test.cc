// States that are kept, forked and moved: going on from one is going on from the text, and nothing
// but an undamaged state of the same model is taken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dofla/core/fingerprint.h"
#include "dofla/linear/linear_model.h"
#include "dofla/serve/state_store.h"
#include "tests/serve/served.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"

namespace dofla {
namespace {

using test::serve;
using test::Served;
using testing::HasSubstr;

struct Case {
  Transformer model;
  std::shared_ptr<StateStore> states;
};

Case make_case(const std::string& kind, const std::string& fingerprint = "0123") {
  const Checkpoint teacher(test::fixtures() / "llama");
  Transformer model =
      kind == "softmax"  ? Transformer(teacher)
      : kind == "linear" ? make_linear_model(teacher, test::ragged_features(teacher.config()))
      : kind == "hybrid" ? make_linear_model(teacher, test::hybrid_features(teacher.config()))
                         : make_linear_model(teacher, test::mixed_features(teacher.config()));
  auto states = std::make_shared<StateStore>(model, fingerprint);
  return {std::move(model), std::move(states)};
}

GenerationRequest greedy(TokenIds prompt, int64_t tokens) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = tokens;
  request.stop_at_end_of_text = false;
  request.sampler.temperature = 0;
  return request;
}

class States : public testing::TestWithParam<const char*> {
 protected:
  const Case own = make_case(GetParam());
  const TokenIds prompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
};

TEST_P(States, GoOnWhereTheyWereKept) {
  Engine engine(own.model, {.cache_memory = 0, .states = own.states});
  const TokenIds whole = serve(engine, greedy(prompt, 10)).get().ids;
  GenerationRequest first = greedy(prompt, 4);
  first.keep_state = "talk";
  EXPECT_EQ(serve(engine, first).get().ids, TokenIds(whole.begin(), whole.begin() + 4));
  own.states->fork("talk", "fork");
  GenerationRequest next = greedy({}, 6);
  next.from_state = "talk";
  next.keep_state = "talk";
  EXPECT_EQ(serve(engine, next).get().ids, TokenIds(whole.begin() + 4, whole.end()));
  EXPECT_EQ(own.states->find("talk")->tokens.size(), prompt.size() + 10);
  // The fork is still where it was, and can go another way.
  EXPECT_EQ(own.states->find("fork")->tokens.size(), prompt.size() + 4);
  next.from_state = "fork";
  next.keep_state = "";
  EXPECT_EQ(serve(engine, next).get().ids, TokenIds(whole.begin() + 4, whole.end()));
  next.prompt = {7, 7};
  TokenIds text = prompt;
  text.insert(text.end(), whole.begin(), whole.begin() + 4);
  text.insert(text.end(), {7, 7});
  next.top_logprobs = 0;
  GenerationRequest from_text = greedy(text, 6);
  from_text.top_logprobs = 0;
  const Served other = serve(engine, next).get(), expected = serve(engine, from_text).get();
  EXPECT_NEAR(*other.tokens[0].logprob, *expected.tokens[0].logprob, 1e-3);
  EXPECT_EQ(other.usage.prompt_tokens, 2);
  next.from_state = "nothing";
  EXPECT_THROW(engine.submit(next), NoSuchState);
}

// Of a prompt that was only read, and a score of what follows it.
TEST_P(States, KeepAPromptForWhatFollows) {
  Engine engine(own.model, {.cache_memory = 0, .states = own.states});
  GenerationRequest read = greedy(prompt, 0);
  read.keep_state = "prompt";
  serve(engine, read).get();
  GenerationRequest next = greedy({}, 5);
  next.from_state = "prompt";
  EXPECT_EQ(serve(engine, next).get().ids, serve(engine, greedy(prompt, 5)).get().ids);
  GenerationRequest scored = greedy({8, 9}, 0);
  scored.from_state = "prompt";
  scored.score_prompt = true;
  const Served found = serve(engine, scored).get();
  TokenIds text = prompt;
  text.insert(text.end(), {8, 9});
  scored.from_state = "";
  scored.prompt = text;
  const Served expected = serve(engine, scored).get();
  ASSERT_EQ(found.prompt.size(), 2u);
  for (size_t i = 0; i < 2; ++i)
    EXPECT_NEAR(*found.prompt[i].logprob, *expected.prompt[prompt.size() + i].logprob, 1e-3);
}

TEST_P(States, AreTheSameAfterTheirWayThroughBytes) {
  Engine engine(own.model, {.states = own.states});
  GenerationRequest request = greedy(prompt, 4);
  request.keep_state = "a";
  serve(engine, request).get();
  request.max_tokens = 0;
  request.keep_state = "b";
  serve(engine, request).get();
  for (const std::string name : {"a", "b"}) {
    const std::string bytes = own.states->write(name);
    own.states->read("again", bytes);
    EXPECT_EQ(own.states->write("again"), bytes);
    GenerationRequest next = greedy({}, 5);
    next.from_state = name;
    const TokenIds expected = serve(engine, next).get().ids;
    next.from_state = "again";
    EXPECT_EQ(serve(engine, next).get().ids, expected);
    // In another process, as it were.
    const Case other = make_case(GetParam());
    Engine second(other.model, {.states = other.states});
    other.states->read("moved", bytes);
    next.from_state = "moved";
    EXPECT_EQ(serve(second, next).get().ids, expected);
  }
}

TEST_P(States, AreRefusedWhereTheyAreDamagedOrAnotherModels) {
  Engine engine(own.model, {.states = own.states});
  GenerationRequest request = greedy(prompt, 4);
  request.keep_state = "a";
  serve(engine, request).get();
  const std::string bytes = own.states->write("a");
  for (size_t at = 0; at < bytes.size(); at += 1 + bytes.size() / 97) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    test::expect_error([&] { own.states->read("x", damaged); }, {"checksum"});
    test::expect_error([&] { own.states->read("x", bytes.substr(0, at)); }, {"checksum"});
  }
  test::expect_error([&] { make_case(GetParam(), "4567").states->read("x", bytes); },
                     {"another model"});
  // A header that lies, with a checksum that fits.
  const auto change = [&](const std::string& from, const std::string& to) {
    std::string text = bytes.substr(0, bytes.size() - 16);
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    uint64_t length = 0;
    std::memcpy(&length, text.data(), 8);
    length += to.size() - from.size();
    std::memcpy(text.data(), &length, 8);
    Fingerprint print;
    print.add({reinterpret_cast<const std::byte*>(text.data()), text.size()});
    return text + print.text();
  };
  const auto refused = [&](const std::string& from, const std::string& to) {
    EXPECT_THROW(own.states->read("x", change(from, to)), Error) << to;
  };
  refused("\"version\":1", "\"version\":2");
  refused("\"read\":15", "\"read\":14");
  refused("\"read\":15", "\"read\":99");
  refused("\"read\":15", "\"read\":-1");
  refused("\"tokens\":[3,", "\"tokens\":[-3,");
  refused("\"tokens\":[3,", "\"tokens\":[3000000,");
  refused("\"tokens\":[3,", "\"tokens\":[\"3\",");
  refused("\"dtype\":\"F32\"", "\"dtype\":\"I32\"");
  refused("\"dtype\":\"F32\"", "\"dtype\":\"F64\"");
  refused("\"shape\":[1,", "\"shape\":[2,");
  refused("\"hidden\":false", "\"hidden\":true");
  refused("dofla.state", "dofla.states");
  EXPECT_EQ(own.states->list().size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Kinds, States, testing::Values("softmax", "linear", "hybrid", "mixed"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST(StateStore, KeepsNamesAndMemoryInBounds) {
  const Case own = make_case("linear");
  for (const std::string name : {"", ".a", "a/b", "a b", "\n", "ä"})
    EXPECT_THROW(StateStore::require_name(name), std::invalid_argument) << name;
  EXPECT_THROW(StateStore::require_name(std::string(65, 'a')), std::invalid_argument);
  StateStore::require_name("Chat-1_a.b");

  const auto snapshot = [&] {
    Snapshot made = {.tokens = {1}, .state = own.model.new_state()};
    own.model.forward(to_tensor({1}), {.state = &made.state, .observer = {}});
    return made;
  };
  const int64_t bytes = snapshot().bytes();
  EXPECT_EQ(bytes, snapshot().state.bytes() + 8);
  StateStore store(own.model, "f", 2 * bytes + 1);
  store.save("a", snapshot());
  store.save("b", snapshot());
  EXPECT_EQ(store.bytes(), 2 * bytes);
  test::expect_error([&] { store.save("c", snapshot()); }, {"remove some first"});
  store.fork("a", "c");  // takes no memory
  store.save("b", snapshot());
  ASSERT_EQ(store.list().size(), 3u);
  EXPECT_EQ(store.list()[2].name, "c");
  EXPECT_EQ(store.list()[2].tokens, 1);
  EXPECT_TRUE(store.remove("b"));
  EXPECT_FALSE(store.remove("b"));
  EXPECT_THROW(store.find("b"), NoSuchState);
  EXPECT_THROW(store.write("b"), NoSuchState);
  EXPECT_THROW(store.fork("b", "d"), NoSuchState);
}

TEST(Fingerprint, TellsModelsApart) {
  const Checkpoint gpt2(test::fixtures() / "gpt2"), llama(test::fixtures() / "llama");
  EXPECT_EQ(fingerprint_of(gpt2), fingerprint_of(Checkpoint(test::fixtures() / "gpt2")));
  EXPECT_NE(fingerprint_of(gpt2), fingerprint_of(llama));
  const std::string name = gpt2.names().front();
  Tensor changed = gpt2.tensor(name).to(DType::kF32).clone();
  const std::string same_weights = fingerprint_of(gpt2.with({{name, changed.clone()}}));
  changed.data<float>()[changed.count() - 1] += 1;
  EXPECT_NE(fingerprint_of(gpt2.with({{name, changed}})), same_weights);
}

}  // namespace
}  // namespace dofla
