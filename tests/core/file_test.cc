#include "dofla/core/file.h"

#include <algorithm>
#include <csignal>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/full_disk.h"

namespace dofla {
namespace {

using test::expect_error;
using test::ScratchFolder;

std::vector<std::string> listing(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(File, ReadsWhatWasWritten) {
  const ScratchFolder scratch;
  const fs::path path = scratch.path() / "file";
  const std::string contents("one\0two\n", 8);
  write_whole(path, contents);
  EXPECT_EQ(read_text(path), contents);
  write_whole(path, "");
  EXPECT_EQ(read_text(path), "");
  EXPECT_EQ(listing(scratch.path()), std::vector<std::string>{"file"});
}

TEST(File, RefusesWhatIsNoRegularFile) {
  const ScratchFolder scratch;
  const fs::path pipe = scratch.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const fs::path& path : {scratch.path(), pipe, fs::path("/dev/zero")}) {
    SCOPED_TRACE(path);
    expect_error([&] { read_text(path); }, {path.string(), "not a regular file"});
  }
  const fs::path missing = scratch.path() / "missing";
  expect_error([&] { read_text(missing); }, {missing.string(), "No such file"});
}

TEST(File, ReadsAPipeWhereOneIsWelcome) {
  const ScratchFolder scratch;
  const fs::path pipe = scratch.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string contents(300'000, 'x');
  const auto read_pipe = [&](size_t limit) {
    const std::jthread writer([&] { std::ofstream(pipe) << contents; });
    return read_text(pipe, limit, Input::kFileOrPipe);
  };
  EXPECT_EQ(read_pipe(contents.size()), contents);
  write_whole(scratch.path() / "file", "12");
  EXPECT_EQ(read_text(scratch.path() / "file", 2, Input::kFileOrPipe), "12");
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  expect_error([&] { read_pipe(1000); }, {pipe.string(), "1000 allowed"});
  std::signal(SIGPIPE, before);
  expect_error([&] { read_text("/dev/zero", 10, Input::kFileOrPipe); }, {"not a regular file"});
}

TEST(File, PlacesArePreparedBeforeTheWork) {
  const ScratchFolder scratch;
  prepare_place(scratch.path() / "a/b/new");
  EXPECT_EQ(listing(scratch.path() / "a/b"), std::vector<std::string>{});
  write_whole(scratch.path() / "a/b/new", "old");
  prepare_place(scratch.path() / "a/b/new");  // may be there: it is written over
  EXPECT_EQ(read_text(scratch.path() / "a/b/new"), "old");
  expect_error([&] { prepare_place(scratch.path() / "a/b/new/x"); }, {"new", "Not a directory"});
  expect_error([&] { prepare_place(scratch.path() / "a/b"); }, {"a/b", "is a folder; expected"});
  expect_error([&] { prepare_place(""); }, {"not a name"});
  expect_error([&] { prepare_place("/proc/none/x"); }, {"/proc/none"});
}

TEST(File, ReadsNoMoreThanTheLimit) {
  const ScratchFolder scratch;
  const fs::path path = scratch.path() / "file";
  write_whole(path, "12345");
  EXPECT_EQ(read_text(path, 5), "12345");
  expect_error([&] { read_text(path, 4); }, {path.string(), "5 bytes", "4 allowed"});
}

TEST(WholeFile, WithoutCommitNothingChanges) {
  const ScratchFolder scratch;
  const fs::path path = scratch.path() / "file";
  write_whole(path, "old");
  {
    WholeFile file(path);
    file.write("new", 3);
    EXPECT_EQ(read_text(path), "old");
  }
  EXPECT_EQ(read_text(path), "old");
  EXPECT_EQ(listing(scratch.path()), std::vector<std::string>{"file"});
}

TEST(WholeFile, SaysThatThereIsNoRoom) {
  const ScratchFolder scratch;
  const fs::path path = scratch.path() / "file";
  const test::FullDisk disk(1000);
  WholeFile(path).reserve(1000);
  expect_error([&] { WholeFile(path).reserve(200'000'000); },
               {path.string(), "cannot write 200.0 MB", "File too large"});
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

TEST(WholeFile, AFullDiskLeavesTheOldFile) {
  const ScratchFolder scratch;
  const fs::path path = scratch.path() / "file";
  write_whole(path, "old");
  expect_error(
      [&] {
        const test::FullDisk disk(1000);
        write_whole(path, std::string(2000, 'x'));
      },
      {path.string(), "cannot write", "File too large"});
  EXPECT_EQ(read_text(path), "old");
  EXPECT_EQ(listing(scratch.path()), std::vector<std::string>{"file"});
}

TEST(WholeFile, RefusesAFolderThatIsNotThere) {
  const ScratchFolder scratch;
  const fs::path path = scratch.path() / "missing" / "file";
  expect_error([&] { write_whole(path, "x"); }, {path.string(), "cannot write", "No such file"});
}

TEST(WholeFile, CannotReplaceAFolder) {
  const ScratchFolder scratch;
  const fs::path path = scratch.path() / "folder";
  fs::create_directory(path);
  expect_error([&] { write_whole(path, "x"); }, {path.string(), "cannot write"});
  EXPECT_EQ(listing(scratch.path()), std::vector<std::string>{"folder"});
}

TEST(WholeFile, WritersOfTheSameFileDoNotMix) {
  const ScratchFolder scratch;
  const fs::path path = scratch.path() / "file";
  WholeFile first(path);
  WholeFile second(path);
  first.write("first", 5);
  second.write("2", 1);
  first.commit();
  EXPECT_EQ(read_text(path), "first");
  second.commit();
  EXPECT_EQ(read_text(path), "2");
}

TEST(WholeFile, DoesNotWriteThroughALinkLeftInItsWay) {
  const ScratchFolder scratch;
  const fs::path path = scratch.path() / "file";
  const fs::path precious = scratch.path() / "precious";
  write_whole(precious, "keep");
  fs::create_symlink(precious, path.string() + fmt::format(".partial-{}-0", ::getpid()));
  write_whole(path, "new");
  EXPECT_EQ(read_text(path), "new");
  EXPECT_EQ(read_text(precious), "keep");
}

TEST(NewFolder, AppearsWithCommit) {
  const ScratchFolder scratch;
  const fs::path target = scratch.path() / "out";
  {
    NewFolder folder(target.string() + "/");  // as a shell completes it
    write_whole(folder.path() / "a", "1");
    EXPECT_FALSE(fs::exists(target));
    folder.commit();
  }
  EXPECT_EQ(read_text(target / "a"), "1");
  EXPECT_EQ(listing(scratch.path()), std::vector<std::string>{"out"});
}

TEST(NewFolder, WithoutCommitNothingStays) {
  const ScratchFolder scratch;
  {
    NewFolder folder(scratch.path() / "out");
    write_whole(folder.path() / "a", "1");
  }
  EXPECT_TRUE(listing(scratch.path()).empty());
}

TEST(NewFolder, RefusesWhatExists) {
  const ScratchFolder scratch;
  const fs::path target = scratch.path() / "out";
  write_whole(target, "a file");
  expect_error([&] { NewFolder folder(target); }, {target.string(), "exists already"});
  fs::remove(target);
  fs::create_symlink("nowhere", target);
  expect_error([&] { NewFolder folder(target); }, {target.string(), "exists already"});
}

TEST(NewFolder, RefusesAParentThatIsNotThere) {
  const ScratchFolder scratch;
  const fs::path target = scratch.path() / "missing" / "out";
  expect_error([&] { NewFolder folder(target); }, {target.string() + ": cannot create"});
  const fs::path long_name = scratch.path() / std::string(300, 'x');
  expect_error([&] { NewFolder folder(long_name); }, {"cannot create", "too long"});
}

TEST(NewFolder, DoesNotReplaceWhatAppearedMeanwhile) {
  const ScratchFolder scratch;
  const fs::path target = scratch.path() / "out";
  NewFolder folder(target);
  fs::create_directory(target);
  write_whole(target / "theirs", "x");
  expect_error([&] { folder.commit(); }, {target.string(), "cannot create"});
  EXPECT_EQ(listing(target), std::vector<std::string>{"theirs"});
}

}  // namespace
}  // namespace dofla
