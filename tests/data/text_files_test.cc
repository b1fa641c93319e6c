#include "dofla/data/text_files.h"

#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/support/compress.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

class TextFilesTest : public testing::Test {
 protected:
  // What comes through a pipe of this name.
  TextFiles through_pipe(const std::string& name, const std::string& contents,
                         uint64_t longest = TextFiles::kLongestPipe) const {
    const fs::path pipe = scratch_.path() / name;
    EXPECT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    const std::jthread writer([=] { std::ofstream(pipe) << contents; });
    return TextFiles({pipe}, longest);
  }
  static std::string read(const TextFiles& files) {
    std::string all;
    std::vector<char> part(7);
    const ByteReader bytes = files.open(0);
    while (const size_t size = bytes(part)) all.append(part.data(), size);
    return all;
  }

  const test::ScratchFolder scratch_;
};

const std::string kOneLine = " \n{\"text\": \"one\"}\n";

TEST_F(TextFilesTest, APipeIsReadAsOftenAsNeeded) {
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += std::to_string(i) + "\n";
  const TextFiles files = through_pipe("pipe", text);
  EXPECT_EQ(files.kind(0), TextKind::kText);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(read(files), text);
}

TEST_F(TextFilesTest, ThePipesContentShowsItsKind) {
  EXPECT_EQ(through_pipe("lines", kOneLine).kind(0), TextKind::kJsonLines);
  EXPECT_EQ(through_pipe("empty", "").kind(0), TextKind::kText);
  for (const std::string& packed : {test::zstd(kOneLine), test::gzip(kOneLine)}) {
    const TextFiles files = through_pipe("packed" + std::to_string(packed.size()), packed);
    EXPECT_EQ(files.kind(0), TextKind::kJsonLines);
    EXPECT_EQ(read(files), kOneLine);
  }
}

TEST_F(TextFilesTest, ThePipesNameComesFirst) {
  EXPECT_EQ(through_pipe("a.txt", kOneLine).kind(0), TextKind::kText);
  const TextFiles packed = through_pipe("a.jsonl.gz", test::gzip(" "));
  EXPECT_EQ(packed.kind(0), TextKind::kJsonLines);
  EXPECT_EQ(read(packed), " ");
}

TEST_F(TextFilesTest, APipeHasALimit) {
  test::expect_error([&] { through_pipe("pipe", std::string(1000, 'x'), 999); },
                     {"pipe: more than the 999 bytes"});
}

TEST_F(TextFilesTest, TheShellsDescriptorsHaveNoEnding) {
  const fs::path path = scratch_.path() / "file";
  write_whole(path, kOneLine);
  test::expect_error([&] { TextFiles{path}; }, {"file: not a kind of text"});
  test::expect_error([&] { TextFiles{"/dev/zero"}; }, {"/dev/zero: not a kind of text"});
}

TEST_F(TextFilesTest, AFolderIsAllTextsInIt) {
  const fs::path folder = scratch_.path() / "texts";
  fs::create_directories(folder / "b" / ".hidden");
  for (const char* name :
       {"c.txt", "a.jsonl.zst", "b/d.txt.gz", "notes.md", ".e.txt", "b/.hidden/f.txt"})
    std::ofstream(folder / name) << "x";
  fs::create_directory_symlink(folder, folder / "b" / "loop");
  const TextFiles files({folder});
  ASSERT_EQ(files.count(), 3U);
  EXPECT_EQ(files.name(0), folder / "a.jsonl.zst");
  EXPECT_EQ(files.name(1), folder / "b/d.txt.gz");
  EXPECT_EQ(files.name(2), folder / "c.txt");
  EXPECT_EQ(files.kind(0), TextKind::kJsonLines);
  test::expect_error([&] { TextFiles({folder / "b" / ".hidden" / "none"}); },
                     {"not a kind of text"});
  fs::create_directory(folder / "empty");
  test::expect_error([&] { TextFiles({folder / "empty"}); }, {"no text in this folder"});
}

TEST_F(TextFilesTest, APatternIsAllThatMatches) {
  for (const char* name : {"wiki-2.txt", "wiki-10.txt", "wiki-1.txt", "news-1.txt", "odd[1].txt"})
    std::ofstream(scratch_.path() / name) << "x";
  const TextFiles files({scratch_.path() / "wiki-*.txt", scratch_.path() / "news-?.txt"});
  ASSERT_EQ(files.count(), 4U);
  EXPECT_EQ(files.name(0), scratch_.path() / "wiki-1.txt");
  EXPECT_EQ(files.name(1), scratch_.path() / "wiki-10.txt");
  EXPECT_EQ(files.name(3), scratch_.path() / "news-1.txt");
  // A file of that very name comes first.
  EXPECT_EQ(TextFiles({scratch_.path() / "odd[1].txt"}).name(0), scratch_.path() / "odd[1].txt");
  test::expect_error([&] { TextFiles({scratch_.path() / "none-*.txt"}); },
                     {"no file has such a name"});
}

}  // namespace
}  // namespace dofla
