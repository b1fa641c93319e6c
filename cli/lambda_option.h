// --lambda, which the paper writes as a power of two: 2^-8 or 0.00390625.
#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

namespace dofla::cli {

class LambdaOption {
 public:
  void add(CLI::App& app, const std::string& help);

  std::optional<double> value() const { return value_; }  // nothing if it was left out

 private:
  std::optional<double> value_;
};

std::string lambda_text(double lambda);  // "2^-8", or the number if it is no power of two

}  // namespace dofla::cli
