#include "cli/memory_option.h"

#include "dofla/core/bytes.h"

namespace dofla::cli {

CLI::Option* add_memory(CLI::App& app, std::optional<int64_t>& bytes, const std::string& help,
                        const std::string& name) {
  const auto set = [&bytes, name](const std::string& text) {
    bytes = read_bytes(text);
    if (!bytes)
      throw CLI::ValidationError(
          name, "expected a size such as 3MB, 500kB or 2000000 bytes, found " + text);
  };
  return app.add_option_function<std::string>(name, set, help)->type_name("BYTES");
}

}  // namespace dofla::cli
