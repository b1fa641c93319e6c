#include "cli/assets.h"

#include <cstdlib>
#include <vector>

#include "dofla/core/error.h"

namespace dofla::cli {
namespace {

// Where the assets may lie. DOFLA_ASSETS is the user's word and stands alone; otherwise an
// installed binary looks beside itself first, so that a moved installation keeps working.
std::vector<fs::path> asset_folders() {
  if (const char* chosen = std::getenv("DOFLA_ASSETS"); chosen != nullptr) return {chosen};
  std::vector<fs::path> folders;
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error);
  if (!error) folders.push_back(binary.parent_path().parent_path() / "share/dofla");
  folders.emplace_back(DOFLA_INSTALLED_ASSETS);
  folders.emplace_back(DOFLA_SOURCE_ASSETS);
  return folders;
}

fs::path find_asset(const char* name, const char* instead) {
  for (const fs::path& folder : asset_folders()) {
    std::error_code error;
    if (fs::exists(folder / name, error)) return folder / name;
  }
  fail("the built-in {} is not found: {}, or set DOFLA_ASSETS to the folder that holds it", name,
       instead);
}

}  // namespace

fs::path built_in_model() {
  return find_asset("wiki-mini", "name a MODEL");
}
fs::path built_in_text(const char* instead) {
  return find_asset("wikipedia.jsonl.zst", instead);
}

}  // namespace dofla::cli
