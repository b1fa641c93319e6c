// Degrees of freedom on the command line: --lambda, which the paper writes as a power of two (2^-8
// or 0.00390625), and the text that shows them.
#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "dofla/dof/dof_table.h"

namespace dofla::cli {

class LambdaOption {
 public:
  void add(CLI::App& app, const std::string& help);

  std::optional<double> value() const { return value_; }  // nothing if it was left out

 private:
  std::optional<double> value_;
};

std::string lambda_text(double lambda);  // "2^-8", or the number if it is no power of two

// "12.3 ± 0.4"; one draw has no spread, and none is shown.
std::string dof_text(const DofEstimate& dof, int64_t draws);

}  // namespace dofla::cli
