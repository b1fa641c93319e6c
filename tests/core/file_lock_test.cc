#include "dofla/core/file_lock.h"

#include <csignal>
#include <optional>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

class Locking : public testing::Test {
 protected:
  const test::ScratchFolder scratch;
  const fs::path file = scratch.path() / "student.lock";
};

TEST_F(Locking, OneAtATimeAndTheOtherIsNamed) {
  std::optional<FileLock> lock(std::in_place, file, "student");
  test::expect_error([&] { FileLock(file, "student"); },
                     {"student: process ", std::to_string(::getpid()), "is at work on it"});
  lock.reset();
  EXPECT_FALSE(fs::exists(file));
  EXPECT_NO_THROW(FileLock(file, "student"));
}

TEST_F(Locking, AKilledProcessLocksNobodyOut) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const FileLock lock(file, "student");
    ::raise(SIGKILL);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(fs::exists(file));
  EXPECT_NO_THROW(FileLock(file, "student"));
  EXPECT_FALSE(fs::exists(file));
}

TEST_F(Locking, APlaceThatCannotBeWrittenToIsNamed) {
  test::expect_error([&] { FileLock(scratch.path() / "none" / "x.lock", "x"); },
                     {"none/x.lock", "cannot open"});
}

}  // namespace
}  // namespace dofla
