#include "dofla/data/tasks/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using test::expect_error;
using testing::ElementsAre;

class Records : public testing::Test {
 protected:
  fs::path write(std::string_view contents) const {
    write_whole(file, contents);
    return file;
  }
  void expect_csv_error(std::string_view contents, std::string_view part) const {
    write(contents);
    expect_error([&] { read_csv(file); }, {part});
  }

  const test::ScratchFolder scratch;
  const fs::path file = scratch.path() / "records";
};

TEST_F(Records, LinesEndInWhateverWay) {
  const std::vector<TextLine> lines =
      read_lines(write("\xef\xbb\xbf"
                       "a\r\nb\rc\n\nd"));
  std::vector<std::string> texts;
  for (const TextLine& line : lines) texts.push_back(line.text);
  EXPECT_THAT(texts, ElementsAre("a", "b", "c", "", "d"));
  EXPECT_EQ(lines[4].where, file.string() + ":5");
  EXPECT_TRUE(read_lines(write("")).empty());
}

TEST_F(Records, TextIsUtf8) {
  expect_error([&] { read_lines(write("a\nb\xff\n")); }, {"records:2: not valid UTF-8: byte 0xff"});
  expect_error([&] { read_lines(scratch.path() / "none"); }, {"none: cannot open"});
  expect_error([&] { read_lines(scratch.path()); }, {"not a regular file"});
}

TEST_F(Records, CsvFieldsMayBeQuoted) {
  const std::vector<CsvRow> rows =
      read_csv(write("plain,\"a, b\",\"say \"\"hi\"\"\"\r\n\"two\r\nlines\",,5\" disk\n\nlast"));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_THAT(rows[0].fields, ElementsAre("plain", "a, b", "say \"hi\""));
  EXPECT_THAT(rows[1].fields, ElementsAre("two\nlines", "", "5\" disk"));
  EXPECT_THAT(rows[2].fields, ElementsAre("last"));
  EXPECT_EQ(rows[1].where, file.string() + ":2");
  EXPECT_EQ(rows[2].where, file.string() + ":5") << "lines inside quotes and blank ones count";
}

TEST_F(Records, CsvKeepsAFieldAfterTheLastComma) {
  EXPECT_THAT(read_csv(write("a,"))[0].fields, ElementsAre("a", ""));
  EXPECT_TRUE(read_csv(write("")).empty());
  EXPECT_TRUE(read_csv(write("\n  \n")).empty());
}

TEST_F(Records, BrokenCsvNamesItsLine) {
  expect_csv_error("a,b\n\"open,\nand so on\n", "records:2: a quote is opened here");
  expect_csv_error("a\n\"b\"c,d\n", "records:2: text after the quote");
  expect_csv_error("\"", "records:1: a quote is opened here");
}

TEST_F(Records, JsonLinesAreObjects) {
  const std::vector<JsonRecord> records = read_json_lines(write("{\"a\": \"x\"}\n\n{}\n"));
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].text("a"), "x");
  EXPECT_EQ(records[1].where, file.string() + ":3");
  for (const char* broken : {"{}\n[1]\n", "{}\n{\"a\": \n", "{}\nnull", "{}\n{} {}"})
    expect_error([&] { read_json_lines(write(broken)); }, {"records:2: "});
}

TEST_F(Records, JsonFieldsAreCheckedBeforeUse) {
  const auto record = read_json_lines(write("{\"n\": 1, \"blank\": \" \\n\", \"o\": {}}"))[0];
  expect_error([&] { record.text("a"); }, {"records:1: expected a text \"a\", found none"});
  expect_error([&] { record.text("n"); }, {"expected a text \"n\", found 1"});
  expect_error([&] { record.text("blank"); }, {"\"blank\" is empty"});
  expect_error([&] { record.member("n"); }, {"expected an object \"n\", found 1"});
  EXPECT_EQ(record.member("o").where, record.where);
}

TEST_F(Records, TrimmedLosesWhiteSpaceAtBothEnds) {
  EXPECT_EQ(trimmed(" \ta b\n"), "a b");
  EXPECT_EQ(trimmed(" \r\n"), "");
  EXPECT_TRUE(is_blank(" \t\r\n"));
  EXPECT_FALSE(is_blank(" a"));
}

}  // namespace
}  // namespace dofla
