#include "dofla/core/json.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using test::expect_error;

void expect_refused(std::string_view text, std::string_view defect) {
  SCOPED_TRACE(std::string(text.substr(0, 80)));
  expect_error([&] { parse_json(text, "file.json"); }, {"file.json: ", defect});
}

TEST(Json, ReadsEveryKindOfValue) {
  const Json value = parse_json(
      R"( {"a": [null, true, -3, 18446744073709551615, 2.5, "é\n"], "b": {}, "c": {"d": [[]]}} )",
      "x");
  EXPECT_EQ(value["a"][0], nullptr);
  EXPECT_EQ(value["a"][1], true);
  EXPECT_EQ(value["a"][2], -3);
  EXPECT_EQ(value["a"][3], UINT64_MAX);
  EXPECT_EQ(value["a"][4], 2.5);
  EXPECT_EQ(value["a"][5], "é\n");
  EXPECT_EQ(value["b"], Json::object());
  EXPECT_EQ(value["c"]["d"], Json::array({Json::array()}));
  EXPECT_EQ(parse_json("7", "x"), 7);
}

TEST(Json, AgreesWithTheLibraryOnRealFiles) {
  for (const auto& entry : fs::recursive_directory_iterator(test::fixtures()))
    if (entry.path().extension() == ".json") {
      EXPECT_EQ(load_json(entry.path()), Json::parse(read_text(entry.path()))) << entry.path();
    }
}

TEST(Json, RefusesBrokenText) {
  expect_refused("", "not valid JSON");
  expect_refused("{", "not valid JSON");
  expect_refused("{\"a\": 1,}", "not valid JSON");
  expect_refused("[1, 2] 3", "not valid JSON");
  expect_refused("{\"a\" 1}", "not valid JSON");
  expect_refused("NaN", "not valid JSON");
  expect_refused("\"no end", "not valid JSON");
  expect_refused("[1e999]", "not valid JSON");  // would be infinite
  expect_refused(std::string_view("{}\0", 3), "not valid JSON");
}

TEST(Json, RefusesWhatIsNotUtf8) {
  expect_refused("\"\xff\"", "not valid JSON");
  expect_refused("\"\xc0\xaf\"", "not valid JSON");          // overlong
  expect_refused("\"\xed\xa0\x80\"", "not valid JSON");      // a surrogate
  expect_refused(R"("\ud800")", "not valid JSON");           // half a pair
  expect_refused("\"\xf4\x90\x80\x80\"", "not valid JSON");  // past U+10FFFF
}

TEST(Json, RefusesAKeyGivenTwice) {
  expect_refused(R"({"a": 1, "b": {"c": 1, "c": 1}})", "key \"c\" given twice");
  EXPECT_NO_THROW(parse_json(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})", "x"));
}

TEST(Json, RefusesDeepNesting) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_NO_THROW(parse_json(nested(64), "x"));
  expect_refused(nested(65), "nested deeper than 64");
  expect_refused(std::string(10'000'000, '['), "nested deeper than 64");
  std::string objects;
  for (int i = 0; i < 65; ++i) objects += "{\"a\":";
  expect_refused(objects, "nested deeper than 64");
}

TEST(Json, MessagesStayOneShortLine) {
  const std::string bell(100'000, '\a');
  try {
    parse_json("[\"" + bell, "x");
    FAIL();
  } catch (const Error& error) {
    const std::string_view text = error.what();
    EXPECT_LT(text.size(), 300u);
    for (const char c : text) EXPECT_TRUE(c >= ' ' && c <= '~') << int{c};
  }
  EXPECT_EQ(excerpt(Json("a\nb")), "\"a\\nb\"");
  EXPECT_EQ(excerpt(Json("\xff")), "\"\\ufffd\"");
  EXPECT_EQ(printable("a\nb\x1b[31m\xc3\xa9"), "a?b?[31m??");
  EXPECT_LT(excerpt(Json(bell)).size(), 200u);
  EXPECT_LT(printable(bell).size(), 200u);
}

TEST(Json, NamesTheFile) {
  const test::ScratchFolder scratch;
  const fs::path path = scratch.path() / "config.json";
  expect_error([&] { load_json(path); }, {path.string(), "No such file"});
  write_whole(path, "{]");
  expect_error([&] { load_json(path); }, {path.string(), "not valid JSON"});
  fs::resize_file(path, (uint64_t{1} << 28) + 1);  // sparse: takes no space
  expect_error([&] { load_json(path); }, {path.string(), "more than"});
}

}  // namespace
}  // namespace dofla
