#include "cli/memory_option.h"

#include "cli/command.h"
#include "dofla/core/bytes.h"
#include "dofla/plan/allocate.h"

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

CLI::Option* add_recall_share(CLI::App& app, std::optional<double>& share, CLI::Option* memory) {
  return app
      .add_option("--recall-share", share,
                  fmt::format("--memory: the share of tokens that are taken to repeat what stood\n"
                              "anywhere before, 0 to 1 (left out: {})",
                              kRecallShare))
      ->type_name("SHARE")
      ->check(real_between(0, 1))
      ->needs(memory);
}

}  // namespace dofla::cli
