#include "cli/generate_options.h"

namespace dofla::cli {

void DrawingOptions::add(CLI::App& app) {
  SamplerOptions& sampler = options_.sampler;
  app.add_option("--max-tokens", options_.max_tokens, "tokens to generate at most")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole_from(1));
  app.add_option("--temperature", sampler.temperature,
                 "divides the logits; 0 always takes the likeliest token")
      ->capture_default_str()
      ->type_name("X")
      ->check(real_between(0, 1e6));
  app.add_option("--top-k", sampler.top_k, "draw from the K likeliest tokens only; 0: from all")
      ->capture_default_str()
      ->type_name("K")
      ->check(whole_from(0));
  app.add_option("--top-p", sampler.top_p,
                 "draw from the fewest tokens that hold probability P, 0 < P <= 1")
      ->capture_default_str()
      ->type_name("P")
      ->check(real_between(1e-9, 1));
  app.add_option("--seed", sampler.seed, "the same seed draws the same tokens")
      ->capture_default_str()
      ->type_name("N")
      ->check(seed_number());
  app.add_flag("--ignore-end", ignore_end_, "go on after the end-of-text token");
}

GenerateOptions DrawingOptions::value() const {
  GenerateOptions options = options_;
  options.stop_at_end_of_text = !ignore_end_;
  return options;
}

}  // namespace dofla::cli
