#include "dofla/data/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/compress.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Corpus : public testing::Test {
 protected:
  fs::path write(const std::string& name, std::string_view contents) {
    write_whole(scratch.path() / name, contents);
    return scratch.path() / name;
  }

  static std::vector<std::string> read(std::vector<fs::path> files) {
    DocumentReader reader(std::move(files));
    std::vector<std::string> documents;
    while (auto document = reader.next()) documents.push_back(*document);
    return documents;
  }

  static std::string error_of(const fs::path& file) {
    try {
      read({file});
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  test::ScratchFolder scratch;
};

constexpr std::string_view kLines =
    "{\"text\": \"one\"}\n\n{\"id\": 7, \"text\": \"zw\\u00f6lf\\n\"}\n";

TEST_F(Corpus, ReadsEveryKindOfFile) {
  EXPECT_THAT(read({write("a.txt", "a b\nc\n")}), ElementsAre("a b\nc\n"));
  EXPECT_THAT(read({write("a.txt.gz", test::gzip("a b"))}), ElementsAre("a b"));
  EXPECT_THAT(read({write("a.txt.zst", test::zstd("a b"))}), ElementsAre("a b"));
  EXPECT_THAT(read({write("a.jsonl", kLines)}), ElementsAre("one", "zwölf\n"));
  EXPECT_THAT(read({write("a.jsonl.gz", test::gzip(kLines))}), ElementsAre("one", "zwölf\n"));
  EXPECT_THAT(read({write("a.jsonl.zst", test::zstd(kLines))}), ElementsAre("one", "zwölf\n"));
}

TEST_F(Corpus, ReadsFilesInOrder) {
  EXPECT_THAT(read({write("b.txt", "first"), write("a.jsonl", kLines), write("c.txt", "last")}),
              ElementsAre("first", "one", "zwölf\n", "last"));
}

TEST_F(Corpus, LastLineNeedsNoEnd) {
  EXPECT_THAT(read({write("a.jsonl", "{\"text\": \"a\"}\r\n{\"text\": \"b\"}")}),
              ElementsAre("a", "b"));
}

TEST_F(Corpus, PassesOverEmptyDocuments) {
  EXPECT_THAT(read({write("a.jsonl", "{\"text\": \"\"}\n{\"text\": \"b\"}\n \t\n")}),
              ElementsAre("b"));
}

TEST_F(Corpus, ReadsFramesAndMembersInARow) {
  const std::string one = "{\"text\": \"1\"}\n", two = "{\"text\": \"2\"}\n";
  EXPECT_THAT(read({write("a.jsonl.zst", test::zstd(one) + test::zstd(two))}),
              ElementsAre("1", "2"));
  EXPECT_THAT(read({write("a.jsonl.gz", test::gzip(one) + test::gzip(two))}),
              ElementsAre("1", "2"));
}

TEST_F(Corpus, LinesMayBeLongerThanAnyBuffer) {
  const std::string text(3 << 20, 'x');
  const std::string lines = "{\"text\": \"" + text + "\"}\n{\"text\": \"y\"}\n";
  EXPECT_THAT(read({write("a.jsonl", lines)}), ElementsAre(text, "y"));
  EXPECT_THAT(read({write("a.jsonl.zst", test::zstd(lines))}), ElementsAre(text, "y"));
  EXPECT_THAT(read({write("a.jsonl.gz", test::gzip(lines))}), ElementsAre(text, "y"));
}

TEST_F(Corpus, EveryCutOfACompressedFileIsAnError) {
  for (const auto& [name, packed] : {std::pair{"a.jsonl.zst", test::zstd(kLines)},
                                     std::pair{"a.jsonl.gz", test::gzip(kLines)}}) {
    for (size_t size = 1; size < packed.size(); ++size) {
      const fs::path file = write(name, std::string_view(packed).substr(0, size));
      EXPECT_THAT(error_of(file), HasSubstr(": truncated: ")) << name << " cut to " << size;
    }
  }
}

TEST_F(Corpus, CorruptStreamsAreErrors) {
  std::string packed = test::gzip(kLines);
  packed[packed.size() - 6] ^= 1;  // its checksum
  EXPECT_THAT(error_of(write("a.jsonl.gz", packed)), HasSubstr("a.jsonl.gz: corrupt gzip data"));
  EXPECT_THAT(error_of(write("b.jsonl.gz", kLines)), HasSubstr("b.jsonl.gz: corrupt gzip data"));
  EXPECT_THAT(error_of(write("c.jsonl.zst", kLines)), HasSubstr("c.jsonl.zst: corrupt zstd data"));
  EXPECT_THAT(error_of(write("d.jsonl.gz", test::gzip(kLines) + "rest")), HasSubstr("corrupt"));
}

TEST_F(Corpus, FilesWithoutADocumentAreErrors) {
  for (const char* name : {"a.txt", "a.jsonl", "a.txt.zst", "a.jsonl.gz"})
    EXPECT_THAT(error_of(write(name, "")), HasSubstr("empty: no document")) << name;
  EXPECT_THAT(error_of(write("b.jsonl", "\n\n{\"text\": \"\"}\n")), HasSubstr("empty"));
  EXPECT_THAT(error_of(write("b.jsonl.zst", test::zstd("\n"))), HasSubstr("empty"));
}

TEST_F(Corpus, BadLinesAreNamed) {
  const std::string good = "{\"text\": \"a\"}\n";
  for (const std::string bad :
       {"text", "[\"text\"]", "\"text\"", "{\"title\": \"a\"}", "{\"text\": 5}", "{\"text\": null}",
        "{\"text\": \"a\"} {\"text\": \"b\"}", "{\"text\": \"\\ud800\"}", "{\"text\": \"\xff\"}",
        "{\"text\": \"a", "{\"text\": \"\xc0\xaf\"}"}) {
    EXPECT_THAT(error_of(write("a.jsonl", good + "\n" + bad + "\n" + good)),
                HasSubstr("a.jsonl:3: "))
        << bad;
  }
  std::string deep = "{\"text\": ";
  deep.append(100000, '[');
  EXPECT_THAT(error_of(write("a.jsonl", deep)), HasSubstr("a.jsonl:1: JSON nested deeper"));
}

TEST_F(Corpus, TextThatIsNotUtf8IsNamedByLine) {
  for (const std::string bad : {"\xff", "\xc3", "\xed\xa0\x80", "\xc0\xaf", "\xf4\x90\x80\x80"})
    EXPECT_THAT(error_of(write("a.txt", "ä\nb\n" + bad)),
                HasSubstr("a.txt:3: not valid UTF-8: byte 0x"));
  EXPECT_THAT(read({write("b.txt", "ä€𝄞")}), ElementsAre("ä€𝄞"));
}

TEST_F(Corpus, ABombEndsAtTheLimit) {
  constexpr size_t kLimit = 1 << 20;
  const std::string packed = test::zstd(std::string(64 * kLimit, 'x'));
  EXPECT_LT(packed.size(), kLimit / 64);
  for (const char* name : {"a.jsonl.zst", "a.txt.zst"}) {
    DocumentReader reader({write(name, packed)}, {.longest_line = kLimit, .longest_text = kLimit});
    try {
      reader.next();
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("1048576 bytes"));
    }
  }
}

TEST_F(Corpus, OtherFilesAreRefused) {
  EXPECT_THAT(error_of(scratch.path() / "a.parquet"), HasSubstr("a.parquet: not a kind of text"));
  EXPECT_THAT(error_of(scratch.path() / "a.gz"), HasSubstr("a.gz: not a kind of text"));
  EXPECT_THAT(error_of(scratch.path() / "none.txt"), HasSubstr("none.txt: cannot open"));
  fs::create_directory(scratch.path() / "folder.txt");
  EXPECT_THAT(error_of(scratch.path() / "folder.txt"),
              HasSubstr("folder.txt: no text in this folder"));
}

TEST_F(Corpus, ReadsTheBuiltInText) {
  const auto documents = read({test::assets() / "wikipedia.jsonl.zst"});
  EXPECT_GT(documents.size(), 100u);
  for (const std::string& document : documents) EXPECT_FALSE(document.empty());
}

TEST_F(Corpus, BadLinesAreLeftOutAndCounted) {
  const std::string surrogate = "{\"text\": \"\\ud800\"}", no_text = "{\"id\": 1}";
  const std::string too_long = "{\"text\": \"" + std::string(100, 'x') + "\"}";
  const fs::path file =
      write("a.jsonl", "{\"text\": \"one\"}\n" + surrogate + "\n" + too_long + "\nno\n" + no_text +
                           "\n{\"text\": \"\xff\"}\n\n{\"text\": \"two\"}\n" + too_long);
  EXPECT_THAT(error_of(file), HasSubstr("a.jsonl:2: not valid JSON"));
  DocumentReader reader({file}, {.longest_line = 60, .skip_bad_lines = true});
  EXPECT_EQ(reader.next(), "one");
  EXPECT_EQ(reader.skipped().count, 0);
  EXPECT_EQ(reader.next(), "two");
  EXPECT_EQ(reader.skipped().count, 5);
  EXPECT_EQ(reader.next(), std::nullopt);
  EXPECT_EQ(reader.skipped().count, 6);
  EXPECT_THAT(reader.skipped().first, HasSubstr("a.jsonl:2: not valid JSON"));
}

TEST_F(Corpus, BadLinesOfATextAreLeftOutToo) {
  DocumentReader reader({write("a.txt", "\xff\nä\nb\xc3\n\nc")}, {.skip_bad_lines = true});
  EXPECT_EQ(reader.next(), "ä\n\nc");
  EXPECT_EQ(reader.skipped().count, 2);
  EXPECT_THAT(reader.skipped().first, HasSubstr("a.txt:1: not valid UTF-8: byte 0xff"));
  DocumentReader nothing({write("b.txt", "\xff")}, {.skip_bad_lines = true});
  EXPECT_THROW(nothing.next(), Error);
}

}  // namespace
}  // namespace dofla
