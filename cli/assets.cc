#include "cli/assets.h"

#include <cstdlib>
#include <vector>

#include <dlfcn.h>

#include "dofla/core/error.h"

namespace dofla::cli {
namespace {

// The file that holds this code: the binary, or the Python module.
fs::path own_file() {
  std::error_code error;
  Dl_info info = {};
  ::dladdr(reinterpret_cast<const void*>(&built_in_model), &info);
  const std::string named = info.dli_fname == nullptr ? "" : info.dli_fname;
  return named.ends_with(".so") ? fs::canonical(named, error)
                                : fs::read_symlink("/proc/self/exe", error);
}

// Where the assets may lie. DOFLA_ASSETS is the user's word and stands alone; otherwise an
// installation looks from where it is itself first (PREFIX/bin/dofla, PREFIX/lib/…/dofla), so that
// it can be moved.
std::vector<fs::path> asset_folders() {
  if (const char* chosen = std::getenv("DOFLA_ASSETS"); chosen != nullptr) return {chosen};
  std::vector<fs::path> folders;
  for (fs::path place = own_file(); place != place.parent_path(); place = place.parent_path())
    folders.push_back(place.parent_path() / "share/dofla");
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
