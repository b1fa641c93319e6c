#include "cli/divergence_lines.h"

#include <cmath>

#include <fmt/format.h>

namespace dofla::cli {

std::string divergence_lines(const Divergence& divergence, int columns) {
  const std::string error =
      std::isnan(divergence.kl_stderr) ? "" : fmt::format(" ± {:.4f}", divergence.kl_stderr);
  const auto line = [&](const char* name, const std::string& text) {
    return fmt::format("{:<{}}{}\n", name, columns, text);
  };
  return line("KL", fmt::format("{:.4f}{}  from the teacher's distribution to the student's",
                                divergence.kl, error)) +
         line("", fmt::format("half of the tokens up to {:.4f}, 90 % {:.3f}, 99 % {:.3f}, "
                              "99.9 % {:.3f}, all {:.3f}",
                              divergence.kl_median, divergence.kl_90, divergence.kl_99,
                              divergence.kl_999, divergence.kl_max)) +
         line("agreement",
              fmt::format("{:.1f} % of the most likely tokens, {:.1f} % of the five likeliest",
                          100 * divergence.same_top, 100 * divergence.top5_overlap)) +
         line("true token", fmt::format("probability {:+.2f} % on average, {:.2f} % RMS",
                                        100 * divergence.p_change, 100 * divergence.p_change_rms));
}

}  // namespace dofla::cli
