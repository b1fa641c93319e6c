#include "tests/support/fixtures.h"

#include <algorithm>
#include <cstdlib>

namespace dofla::test {

fs::path fixtures() {
  const char* set = std::getenv("DOFLA_FIXTURES");
  return set != nullptr ? fs::path(set) : tests_folder() / "fixtures";
}

std::vector<std::string> fixture_models() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(fixtures()))
    if (fs::exists(entry.path() / "expected.safetensors")) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

fs::path assets() {
  return fs::path(DOFLA_SOURCE_DIR) / "assets";
}

fs::path tests_folder() {
  return fs::path(DOFLA_SOURCE_DIR) / "tests";
}

ScratchFolder::ScratchFolder() {
  std::string name = (fs::temp_directory_path() / "dofla-test-XXXXXX").string();
  path_ = ::mkdtemp(name.data());
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace dofla::test
