#include "cli/lambda_option.h"

#include <charconv>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

namespace dofla::cli {
namespace {

template <class Number>
bool read_all(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

std::optional<double> read_lambda(std::string_view text) {
  if (text.starts_with("2^")) {
    int exponent = 0;
    if (!read_all(text.substr(2), exponent)) return std::nullopt;
    return std::ldexp(1.0, exponent);
  }
  double number = 0;
  if (!read_all(text, number)) return std::nullopt;
  return number;
}

}  // namespace

void LambdaOption::add(CLI::App& app, const std::string& help) {
  app.add_option_function<std::string>(
         "--lambda",
         [this](const std::string& text) {
           value_ = read_lambda(text);
           if (!value_ || !(*value_ > 0) || !std::isfinite(*value_))
             throw CLI::ValidationError(
                 "--lambda", "expected a positive number, or a power such as 2^-8, found " + text);
         },
         help)
      ->type_name("X");
}

std::string lambda_text(double lambda) {
  int exponent = 0;
  if (std::frexp(lambda, &exponent) != 0.5) return fmt::format("{:g}", lambda);
  return fmt::format("2^{}", exponent - 1);
}

std::string dof_text(const DofEstimate& dof, int64_t draws) {
  return draws > 1 ? fmt::format("{:.1f} ± {:.1f}", dof.mean, dof.spread)
                   : fmt::format("{:.1f}", dof.mean);
}

}  // namespace dofla::cli
