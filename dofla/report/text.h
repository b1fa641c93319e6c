// Text and numbers as the page shows them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dofla {

// Safe inside elements and quoted attributes. Bytes that are not UTF-8, and control characters
// other than tab and newline, become U+FFFD.
std::string escape_html(std::string_view text);

// `digits` significant digits: "0.0123", "173.8", "12 345", "1.2×10⁻⁷"; "NaN", "∞", "−∞".
std::string format_number(double value, int digits = 4);

// Degrees of freedom as the paper prints them: one decimal.
std::string format_dof(double value);

// "173.8 ± 4.1"; without the spread where that is zero.
std::string format_dof(double value, double spread);

std::string format_power(int base, int64_t exponent);  // "10⁻³"
std::string format_lambda(double value);               // "2⁻⁸" for powers of two
std::string format_count(int64_t value);               // "12 345"

}  // namespace dofla
