// JSON files that were damaged, and what loading says of them.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include <gtest/gtest.h>

#include "dofla/core/json.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla::test {

class DamagedJson : public testing::Test {
 protected:
  explicit DamagedJson(std::function<void(const fs::path&)> load) : load_(std::move(load)) {}

  // Writes the file with the damage, and expects loading to fail with one line about it.
  void expect_damage_refused(Json json, const std::function<void(Json&)>& damage,
                             std::string_view about) {
    damage(json);
    write_whole(path_, json.dump());
    expect_load_fails(about);
  }

  void expect_load_fails(std::string_view about) {
    const auto load = [&] {
      try {
        load_(path_);
      } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_TRUE(text.starts_with(path_.string())) << text;
        throw;
      }
    };
    expect_error(load, {about});
  }

  ScratchFolder folder_;
  const fs::path path_ = folder_.path() / "file.json";

 private:
  const std::function<void(const fs::path&)> load_;
};

}  // namespace dofla::test
