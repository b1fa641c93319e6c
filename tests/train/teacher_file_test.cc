#include "dofla/train/teacher_file.h"

#include <cmath>

#include <gtest/gtest.h>

#include "dofla/core/random.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

class TeacherFiles : public testing::Test {
 protected:
  // Distributions over `top` tokens and a rest, the likeliest first.
  static TopTokens some_rows(int64_t rows, int64_t top, int64_t vocabulary, uint64_t seed) {
    Random random(seed);
    TopTokens all = {.top = top};
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<double> mass;
      double sum = 0;
      for (int64_t i = 0; i <= top; ++i) sum += mass.emplace_back(std::exp(3 * random.normal()));
      for (int64_t i = 0; i < top; ++i) {
        all.tokens.push_back(static_cast<int32_t>(vocabulary - 1 - 3 * i - row));
        all.log_probability.push_back(
            static_cast<float>(std::log(mass[static_cast<size_t>(i)] / sum)));
      }
      all.log_rest.push_back(static_cast<float>(std::log(mass.back() / sum)));
    }
    return all;
  }

  void write(int64_t vocabulary) const {
    fs::remove(path);
    TeacherFileWriter writer(path, {.windows = 3,
                                    .length = 4,
                                    .vocabulary = vocabulary,
                                    .top = 5,
                                    .about = {{"model", "abc"}}});
    for (size_t i = 0; i < 3; ++i) writer.append(windows[i], some_rows(4, 5, vocabulary, 7 + i));
    EXPECT_FALSE(fs::exists(path));
    writer.commit();
  }
  void expect_refused(const std::string& bytes, std::string_view why) const {
    write_whole(path, bytes);
    test::expect_error([&] { TeacherFile file(path); }, {path.string(), why});
  }

  const test::ScratchFolder scratch;
  const fs::path path = scratch.path() / "wiki.teacher";
  const WindowSet windows = {{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}};
};

TEST_F(TeacherFiles, GiveBackWhatWasWritten) {
  for (const int64_t vocabulary : {500, 70000}) {  // ids of 2 bytes and of 4
    write(vocabulary);
    const TeacherFile file(path);
    EXPECT_EQ(file.header().windows, 3);
    EXPECT_EQ(file.header().about["model"], "abc");
    const int64_t which[] = {2, 0};
    const TopTokens found = file.read(which);
    ASSERT_EQ(found.rows(), 8);
    for (const int64_t at : {0, 1}) {
      const TopTokens expected = some_rows(4, 5, vocabulary, 7 + static_cast<uint64_t>(which[at]));
      for (size_t i = 0; i < 20; ++i) {
        const size_t j = i + 20 * static_cast<size_t>(at);
        EXPECT_EQ(found.tokens[j], expected.tokens[i]);
        EXPECT_NEAR(found.log_probability[j], expected.log_probability[i], 1.0 / 2048);
      }
    }
    for (size_t row = 0; row < 8; ++row) {
      double sum = std::exp(found.log_rest[row]);
      for (size_t i = 0; i < 5; ++i) sum += std::exp(found.log_probability[5 * row + i]);
      EXPECT_NEAR(sum, 1, 1e-6);
    }
  }
}

TEST_F(TeacherFiles, AreOfTheirWindowsAlone) {
  write(500);
  const TeacherFile file(path);
  file.require_windows(windows);
  file.require_windows(windows.slice(0, 2));  // the rest is held out
  test::expect_error(
      [&] {
        file.require_windows({{1, 2, 3, 4}, {5, 6, 7, 9}});
      },
      {path.string(), "another text: window 2"});
  test::expect_error([&] { file.require_windows(windows.slice(1, 2)); }, {"window 1"});
  test::expect_error([&] { file.require_windows({{1, 2, 3}}); }, {"windows of 4 tokens, not of 3"});
  std::vector<TokenIds> more = windows.all();
  more.push_back({1, 1, 1, 1});
  test::expect_error([&] { file.require_windows(more); }, {"has 3 windows, and 4"});
}

TEST_F(TeacherFiles, ADamagedBlockIsFoundWhenItIsRead) {
  write(500);
  std::string bytes = read_text(path);
  const size_t block = 4 * (5 * 4 + 2) + 16;
  bytes[bytes.size() - 2 * block + 3] ^= 1;  // of window 2
  write_whole(path, bytes);
  const TeacherFile file(path);
  const int64_t whole[] = {0, 2}, damaged[] = {1};
  EXPECT_EQ(file.read(whole).rows(), 8);
  test::expect_error([&] { file.read(damaged); }, {path.string(), "window 2 is damaged"});
}

TEST_F(TeacherFiles, ThatAreNotWholeAreRefused) {
  write(500);
  const std::string bytes = read_text(path);
  expect_refused(bytes.substr(0, 3), "too short");
  expect_refused(bytes.substr(0, 30), "truncated");
  expect_refused(bytes.substr(0, bytes.size() - 1), "truncated");
  expect_refused(bytes.substr(0, bytes.size() - (4 * (5 * 4 + 2) + 16)), "expected 3 windows");
  expect_refused(bytes + "x", "longer than it says");
  expect_refused("something else entirely, of some length", "no file of a teacher");
  std::string other = bytes;
  other[30] ^= 1;
  expect_refused(other, "header is damaged");
}

TEST_F(TeacherFiles, AreNotThereUnlessAllWasWritten) {
  {
    TeacherFileWriter writer(path,
                             {.windows = 2, .length = 4, .vocabulary = 500, .top = 5, .about = {}});
    writer.append(windows[0], some_rows(4, 5, 500, 1));
    EXPECT_THROW(writer.commit(), std::invalid_argument);
    EXPECT_THROW(writer.append(windows[0], some_rows(3, 5, 500, 1)), std::invalid_argument);
  }
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

}  // namespace
}  // namespace dofla
