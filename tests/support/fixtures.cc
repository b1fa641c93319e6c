#include "tests/support/fixtures.h"

#include <cstdlib>

namespace dofla::test {

fs::path fixtures() {
  const char* set = std::getenv("DOFLA_FIXTURES");
  return set != nullptr ? fs::path(set) : fs::path(DOFLA_SOURCE_DIR) / "tests/fixtures";
}

fs::path assets() { return fs::path(DOFLA_SOURCE_DIR) / "assets"; }

ScratchFolder::ScratchFolder() {
  std::string name = (fs::temp_directory_path() / "dofla-test-XXXXXX").string();
  path_ = ::mkdtemp(name.data());
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace dofla::test
