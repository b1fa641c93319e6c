#include "dofla/core/mapped_file.h"

#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using test::expect_error;

class MappedFileTest : public testing::Test {
 protected:
  void write(std::string_view contents) const { write_whole(path_, contents); }
  static std::string text(const MappedFile& file) {
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
  }

  const test::ScratchFolder scratch_;
  const fs::path path_ = scratch_.path() / "file";
};

TEST_F(MappedFileTest, HoldsWhatWasWritten) {
  const std::string contents("one\0two\n", 8);
  write(contents);
  EXPECT_EQ(text(MappedFile(path_)), contents);
  write("");
  EXPECT_TRUE(MappedFile(path_).bytes().empty());
}

TEST_F(MappedFileTest, RefusesWhatIsNoRegularFile) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  for (const fs::path& path : {scratch_.path(), path_, fs::path("/dev/zero")})
    expect_error([&] { MappedFile file(path); }, {path.string(), "not a regular file"});
  const fs::path missing = scratch_.path() / "missing";
  expect_error([&] { MappedFile file(missing); }, {missing.string(), "No such file"});
}

TEST_F(MappedFileTest, NoticesThatItWasWrittenTo) {
  write("some text");
  const MappedFile file(path_);
  file.require_unchanged();
  fs::last_write_time(path_, fs::last_write_time(path_) + std::chrono::seconds(1));
  expect_error([&] { file.require_unchanged(); }, {path_.string(), "was written to"});
}

TEST_F(MappedFileTest, NoticesThatItBecameShorter) {
  write("some text");
  const MappedFile file(path_);
  const auto time = fs::last_write_time(path_);
  fs::resize_file(path_, 4);
  fs::last_write_time(path_, time);
  expect_error([&] { file.require_unchanged(); }, {path_.string(), "was written to"});
}

TEST_F(MappedFileTest, IsWholeAfterARenameOverItOrItsRemoval) {
  write("some text");
  const MappedFile file(path_);
  write("other");
  file.require_unchanged();
  EXPECT_EQ(text(file), "some text");
  fs::remove(path_);
  file.require_unchanged();
  EXPECT_EQ(text(file), "some text");
}

TEST_F(MappedFileTest, IsFoundByAnAddressInIt) {
  write("some text");
  const std::byte* inside = nullptr;
  {
    const MappedFile file(path_), again(path_);
    inside = file.bytes().data() + 3;
    EXPECT_STREQ(mapped_file_at(inside), path_.c_str());
    EXPECT_STREQ(mapped_file_at(again.bytes().data()), path_.c_str());
    EXPECT_EQ(mapped_file_at(this), nullptr);
  }
  EXPECT_EQ(mapped_file_at(inside), nullptr);
}

}  // namespace
}  // namespace dofla
