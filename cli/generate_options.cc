#include "cli/generate_options.h"

#include "cli/sampling_options.h"

namespace dofla::cli {

void DrawingOptions::add(CLI::App& app) {
  app.add_option("--max-tokens", options_.max_tokens, "tokens to generate at most")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole_from(1));
  add_sampling_options(app, options_.sampler);
  app.add_flag("--ignore-end", ignore_end_, "go on after the end-of-text token");
}

GenerateOptions DrawingOptions::value() const {
  GenerateOptions options = options_;
  options.stop_at_end_of_text = !ignore_end_;
  return options;
}

}  // namespace dofla::cli
