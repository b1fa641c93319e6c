// Each way in which a tokenizer's files can be broken, or ask for what we do not do, is one Error
// that names the file and the defect.
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "dofla/checkpoint/tokenizer.h"
#include "dofla/core/error.h"
#include "dofla/core/json.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

Json sound() {
  return Json::parse(R"({
    "added_tokens": [{"id": 4, "content": "<s>", "special": true, "normalized": false}],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a+"}, "behavior": "Isolated",
                      "invert": false},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A"}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "_"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "<unk>": 3}, "merges": ["a b"],
              "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true}})");
}

void expect_error(const std::function<void()>& action, std::string_view file,
                  std::string_view defect) {
  try {
    action();
    ADD_FAILURE() << "no error; expected: " << defect;
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(file), message.npos) << message;
    EXPECT_NE(message.find(defect), message.npos) << message;
    EXPECT_EQ(message.find('\n'), message.npos) << message;
  }
}

void expect_broken_text(const std::string& text, std::string_view defect) {
  expect_error([&] { Tokenizer::parse(text, "dir/tokenizer.json"); }, "dir/tokenizer.json", defect);
}

void expect_broken(const std::function<void(Json&)>& breakage, std::string_view defect) {
  Json json = sound();
  breakage(json);
  expect_broken_text(json.dump(), defect);
}

void expect_broken_at(std::string_view pointer, const Json& value, std::string_view defect) {
  expect_broken([&](Json& json) { json[Json::json_pointer(std::string(pointer))] = value; },
                defect);
}

TEST(BrokenTokenizer, TheSoundOneIsSound) {
  EXPECT_EQ(Tokenizer::parse(sound().dump(), "test").encode("ab"),
            (std::vector<int64_t>{4, 0, 1}));  // "a" is split off
}

TEST(BrokenTokenizer, Json) {
  const std::string text = sound().dump();
  for (size_t length = 0; length < text.size(); ++length)  // cut off anywhere
    expect_broken_text(text.substr(0, length), "not valid JSON");
  expect_broken_text(text + "x", "not valid JSON");
  expect_broken_text("{\"model\": \"\xFF\"}", "not valid JSON");
  expect_broken_text(std::string(100000, '['), "nested deeper than 64");
  expect_broken_text("{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}",
                     "nested deeper than 64");
  expect_broken_text("[]", "expected an object, found array");
  expect_broken_text("7", "expected an object, found number");
  expect_broken_text("{}", "'model' is missing");
}

TEST(BrokenTokenizer, Vocabulary) {
  expect_broken([](Json& json) { json["model"].erase("vocab"); }, "'vocab' is missing");
  expect_broken_at("/model/vocab", Json::array({"a"}), "'vocab' is missing or not an object");
  expect_broken_at("/model/vocab", Json::object(), "'vocab' is empty");
  expect_broken_at("/model/vocab/b", -1, "id -1 is not between");
  expect_broken_at("/model/vocab/b", 1 << 22, "id 4194304 is not between");
  expect_broken_at("/model/vocab/b", ~uint64_t{0}, "is not between");
  expect_broken_at("/model/vocab/b", 0, "id 0 belongs to 'a' already");
  expect_broken_at("/model/vocab/b", "1", "token 'b': expected an id, found string");
  expect_broken_at("/model/vocab/b", 1.0, "token 'b': expected an id, found number");
  expect_broken_at("/model/vocab/b", nullptr, "token 'b': expected an id, found null");
  expect_broken_at("/model/vocab/b", Json::array({1}), "expected an id, found array");
  expect_broken_at("/model/vocab/b", Json::object(), "expected an id, found object");
  expect_broken_text(R"({"model": {"vocab": {"a": 0, "a": 1}, "merges": []}})",
                     "'a' is there twice");
  expect_broken_text(R"({"model": {"vocab": {"a": 0}, "vocab": {"b": 1}, "merges": []}})",
                     "vocab is there twice");
}

TEST(BrokenTokenizer, Merges) {
  expect_broken([](Json& json) { json["model"].erase("merges"); }, "'merges' is missing");
  expect_broken_at("/model/merges", "a b", "'merges' is missing or not an array");
  expect_broken_at("/model/merges", {"a c"}, "token 'c' is not in the vocabulary");
  expect_broken_at("/model/merges", {"c a"}, "token 'c' is not in the vocabulary");
  expect_broken_at("/model/merges", {"b a"}, "token 'ba' is not in the vocabulary");
  expect_broken_at("/model/merges", {"a b", "ab"}, "merges: 1: expected two tokens");
  expect_broken_at("/model/merges", {"a b a"}, "merges: 0: expected two tokens");
  expect_broken_at("/model/merges", Json::parse(R"([["a", "b", "a"]])"),
                   "merges: 0: expected two tokens, found 3");
  expect_broken_at("/model/merges", Json::parse(R"([["a", 1]])"),
                   "merges: 0: expected two tokens, found number");
  expect_broken_at("/model/merges", Json::array({7}),
                   "merges: 0: expected two tokens, found number");
  expect_broken_at("/model/merges", Json::array({Json::object()}), "found object");
  expect_broken_text(R"({"model": {"vocab": {"a": 0}, "merges": [], "merges": []}})",
                     "merges is there twice");
}

TEST(BrokenTokenizer, Model) {
  for (const char* type : {"Unigram", "WordPiece", "WordLevel"})
    expect_broken_at("/model/type", type, std::string(type) + " is not supported");
  expect_broken_at("/model", 3, "model: expected an object, found number");
  expect_broken_at("/model/type", 3, "type: expected a string");
  expect_broken_at("/model/dropout", 0.1, "dropout is not supported");
  expect_broken_at("/model/continuing_subword_prefix", "##", "continuing_subword_prefix '##'");
  expect_broken_at("/model/end_of_word_suffix", "</w>", "end_of_word_suffix '</w>'");
  expect_broken_at("/model/unk_token", "<none>", "unk_token '<none>' is not in the vocabulary");
  expect_broken_at("/model/fuse_unk", 1, "fuse_unk: expected true or false, found number");
}

TEST(BrokenTokenizer, AddedTokens) {
  expect_broken_at("/added_tokens", "<s>", "added_tokens: expected an array");
  expect_broken_at("/added_tokens/0", "<s>", "added_tokens: 0: expected an object");
  expect_broken_at("/added_tokens/0/id", -4, "id -4 is not between");
  expect_broken_at("/added_tokens/0/id", int64_t{1} << 40, "is not between");
  expect_broken_at("/added_tokens/0/id", ~uint64_t{0}, "is too large");
  expect_broken_at("/added_tokens/0/id", 4.5, "id: expected an integer");
  expect_broken_at("/added_tokens/0/id", 0, "id 0 belongs to 'a' in the model");
  expect_broken_at("/added_tokens/0/content", "a", "token 'a' has id 4, but 0 in the model");
  expect_broken_at("/added_tokens/0/content", 1, "content: expected a string");
  expect_broken_at("/added_tokens/0/lstrip", "yes", "lstrip: expected true or false");
  expect_broken([](Json& json) { json["added_tokens"][0].erase("id"); }, "'id' is missing");
  expect_broken([](Json& json) { json["added_tokens"].push_back(json["added_tokens"][0]); },
                "id 4 belongs to '<s>' already");
  expect_broken_at("/added_tokens/1", {{"id", 5}, {"content", "<s>"}}, "'<s>' is there twice");
}

TEST(BrokenTokenizer, Normalizer) {
  expect_broken_at("/normalizer", "NFC", "normalizer: expected an object");
  expect_broken_at("/normalizer", Json::object(), "normalizer: 'type' is missing");
  expect_broken_at("/normalizer/type", "Lowercase", "normalizer Lowercase is not supported");
  expect_broken_at("/normalizer",
                   Json::parse(R"({"type":"Sequence","normalizers":[{"type":"Nmt"}]})"),
                   "normalizers: 0: normalizer Nmt is not supported");
  expect_broken_at("/normalizer", Json::parse(R"({"type":"Prepend"})"), "'prepend' is missing");
  expect_broken_at("/normalizer", Json::parse(R"({"type":"Replace","pattern":"x","content":""})"),
                   "pattern: expected an object");
}

TEST(BrokenTokenizer, PreTokenizer) {
  expect_broken_at("/pre_tokenizer/type", "BertPreTokenizer", "BertPreTokenizer is not supported");
  expect_broken_at("/pre_tokenizer/behavior", "MergedWithNext", "MergedWithNext is not supported");
  expect_broken_at("/pre_tokenizer/pattern/Regex", "(a", "bad regular expression (a: ");
  expect_broken_at("/pre_tokenizer/pattern", {{"Glob", "*"}}, "expected a String or a Regex");
  expect_broken_at("/pre_tokenizer/pattern", {{"String", ""}}, "is empty");
  expect_broken_at("/pre_tokenizer", Json::parse(R"({"type":"Metaspace","replacement":"_"})"),
                   "replacement '_' is not supported");
  const std::string metaspace = R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"last"})";
  expect_broken_at("/pre_tokenizer", Json::parse(metaspace), "prepend_scheme last");
  const auto sequence = [](const char* steps) {
    return Json{{"type", "Sequence"}, {"pretokenizers", Json::parse(steps)}};
  };
  expect_broken_at("/pre_tokenizer",
                   sequence(R"([{"type":"ByteLevel","add_prefix_space":false},{"type":"Digits"}])"),
                   "Digits after ByteLevel");
  expect_broken_at("/pre_tokenizer",
                   sequence(R"([{"type":"Digits"},{"type":"ByteLevel","add_prefix_space":true}])"),
                   "add_prefix_space after another pre-tokenizer");
  expect_broken_at("/pre_tokenizer",
                   sequence(R"([{"type":"Digits"},{"type":"Metaspace","replacement":"▁"}])"),
                   "Metaspace after another pre-tokenizer");
}

// Oniguruma and PCRE2 read these differently.
TEST(BrokenTokenizer, RegularExpressionDialect) {
  for (const char* construct :
       {R"(\w)", R"(\b)", R"(\h)", R"(\v)", R"(\1)", R"(\R)", R"(\p{Han})", R"(\P{Greek})", "(*F)",
        "(?m)", "(?s:", "(?P<", "(?#", "[[", "&&", "}+", "}?", "(?im", "(?i)"}) {
    std::string regex = construct;
    if (regex == "[[" || regex == "&&") regex = "[a" + regex.substr(regex == "[[") + "b]";
    if (regex[0] == '}') regex = "a{2" + regex;
    expect_broken_at("/pre_tokenizer/pattern/Regex", regex, "is not supported in " + regex);
  }
}

TEST(BrokenTokenizer, ARunawayExpressionIsStopped) {
  Json json = sound();
  json["pre_tokenizer"]["pattern"]["Regex"] = "(?:(?:a+)+)+(?!a|$)";
  const Tokenizer tokenizer = Tokenizer::parse(json.dump(), "dir/tokenizer.json");
  expect_error([&] { tokenizer.encode(std::string(2000, 'a')); }, "dir/tokenizer.json",
               "too much work");
}

TEST(BrokenTokenizer, PostProcessor) {
  expect_broken_at("/post_processor/type", "BertProcessing", "BertProcessing is not supported");
  expect_broken_at("/post_processor/single/1/Sequence/id", "B", "expected the sequence A once");
  expect_broken_at("/post_processor/single/0/SpecialToken/id", "<x>", "'<x>' is missing");
  expect_broken_at("/post_processor/special_tokens/<s>/ids/0", -1, "id -1 is not between");
  expect_broken_at("/post_processor/special_tokens/<s>/ids/0", "x", "expected an integer");
  expect_broken([](Json& json) { json["post_processor"]["single"].erase(1); },
                "the sequence A is missing");
}

TEST(BrokenTokenizer, Decoder) {
  expect_broken_at("/decoder/decoders/0/type", "WordPiece", "decoder WordPiece is not supported");
  expect_broken_at("/decoder/decoders/1/type", "CTC", "decoder CTC is not supported");
  expect_broken_at("/decoder/decoders/3/content", "", "expected one character");
  expect_broken_at("/decoder/decoders/3/content", "ab", "expected one character");
  expect_broken_at("/decoder/decoders/3/start", -1, "must not be negative");
  expect_broken_at("/decoder/decoders/3/stop", 1, "stop 1 after Fuse is not supported");
  expect_broken_at("/decoder/decoders/4", {{"type", "ByteLevel"}}, "at this place");
  expect_broken_at("/decoder/decoders", {{{"type", "ByteLevel"}}, {{"type", "Fuse"}}},
                   "at this place");
}

TEST(BrokenTokenizer, Files) {
  const test::ScratchFolder scratch;
  const auto load = [&] { Tokenizer::load(scratch.path()); };
  expect_error(load, scratch.path().string(), "expected tokenizer.json, or vocab.json");
  expect_error([&] { Tokenizer::load(scratch.path() / "none"); }, "none", "no tokenizer");

  const auto write = [&](const char* name, std::string_view text) {
    write_whole(scratch.path() / name, text);
  };
  write("vocab.json", R"({"a": 0, "b": 1, "ab": 2})");
  write("merges.txt", "a b\n");
  EXPECT_NO_THROW(load());
  write("merges.txt", "a b\n\na b\n");
  expect_error(load, "merges.txt", "line 2: expected two tokens");
  write("merges.txt", "a c\n");
  expect_error(load, "merges.txt", "token 'c' is not in the vocabulary");
  write("merges.txt", "a b\r\n");
  EXPECT_NO_THROW(load());
  for (const auto& [text, defect] : {std::pair{"[]", "expected an object"},
                                     {"{}", "no tokens"},
                                     {"{\"a\": 0", "not valid JSON"},
                                     {"{\"a\": -1}", "id -1"},
                                     {"{\"a\": \"0\"}", "expected an integer"}}) {
    write("vocab.json", text);
    expect_error(load, "vocab.json", defect);
  }
  write("vocab.json", R"({"a": 0, "b": 1, "ab": 2})");
  write("tokenizer_config.json", R"({"tokenizer_class": "Qwen2Tokenizer"})");
  expect_error(load, "tokenizer_config.json", "Qwen2Tokenizer is not supported");
  fs::remove(scratch.path() / "tokenizer_config.json");
  write("added_tokens.json", "{}");
  expect_error(load, "added_tokens.json", "not supported");
  write("tokenizer.json", "");
  expect_error(load, "tokenizer.json", "not valid JSON");
}

}  // namespace
}  // namespace dofla
