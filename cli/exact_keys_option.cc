#include "cli/exact_keys_option.h"

#include "cli/choice_option.h"
#include "cli/usage_error.h"

namespace dofla::cli {

void ExactKeysOption::add(CLI::App& app, const char* leaving, CLI::Option* memory,
                          const std::vector<CLI::Option*>& excluded) {
  const HelpSection section(app, "Exact keys");
  memory_ = memory;
  const ExactKeys defaults;
  CLI::Option* keys =
      app.add_option(
             "--keys", keys_,
             fmt::format("keys that a key head keeps exact: the first, the newest and the most "
                         "attended\nlately; what leaves {}",
                         leaving))
          ->type_name("K")
          ->check(whole_between(1, 1 << 20));
  CLI::Option* window =
      app.add_option("--window", window_, "the same as --keys K --policy recent: the newest keys")
          ->type_name("K")
          ->check(whole_between(1, 1 << 20))
          ->excludes(keys);
  if (memory != nullptr) memory->excludes(keys)->excludes(window);
  std::vector<CLI::Option*> options = {keys, window};
  options.push_back(
      app.add_option("--sinks", sinks_,
                     fmt::format("of them the first tokens, which always stay (default: {})",
                                 defaults.sinks))
          ->type_name("S")
          ->check(whole_between(0, 1 << 20)));
  options.push_back(add_choice(app, "--policy", policy_,
                               fmt::format("which keys stay (default: {})", name(defaults.policy)))
                        ->excludes(window));
  options.push_back(
      app.add_option("--recent", recent_,
                     "the newest, which stay until others have come (default: half of K)")
          ->type_name("R")
          ->check(whole_between(1, 1 << 20)));
  options.push_back(
      app.add_option("--block", block_,
                     fmt::format("keys that leave together, a divisor of 64: fewer use the memory\n"
                                 "better, more are faster (default: {})",
                                 defaults.block))
          ->type_name("B")
          ->check(whole_between(1, 64)));
  for (CLI::Option* option : options)
    for (CLI::Option* other : excluded) option->excludes(other);
}

std::optional<ExactKeys> ExactKeysOption::value() const {
  if (!given() && (memory_ == nullptr || memory_->count() == 0)) {
    if (sinks_ || recent_ || block_ || policy_)
      throw UsageError(fmt::format(
          "--sinks, --policy, --recent and --block are of exact keys: give --keys{} too",
          memory_ == nullptr ? "" : " or --memory"));
    return std::nullopt;
  }
  ExactKeys exact;
  exact.keys = keys_.value_or(window_.value_or(0));
  exact.policy = policy_.value_or(window_ ? KeyPolicy::kRecent : exact.policy);
  exact.sinks = sinks_.value_or(exact.sinks);
  exact.recent = recent_.value_or(exact.recent);
  exact.block = block_.value_or(exact.block);
  return exact;
}

void KeepOption::add(CLI::App& app, CLI::Option* plan, CLI::Option* start) {
  const HelpSection section(app, "Exact keys");
  CLI::Option* keep =
      app.add_option("--keep", layers_,
                     "layers that keep their softmax attention and its cache, such as 1,10")
          ->delimiter(',')
          ->type_name("L")
          ->check(whole_from(1))
          ->excludes(start);
  app.add_option("--keep-count", count_,
                 "how many keep it: those that add most to the loss when they are linear, with\n"
                 "--strategy dof those with the largest degrees of freedom")
      ->type_name("N")
      ->check(whole_from(1))
      ->excludes(keep)
      ->excludes(plan)
      ->excludes(start);
}

std::vector<int64_t> KeepOption::layers() const {
  std::vector<int64_t> layers;
  for (const int64_t layer : layers_) layers.push_back(layer - 1);
  return layers;
}

}  // namespace dofla::cli
