#include "dofla/report/text.h"

#include <cmath>

#include <fmt/format.h>

namespace dofla {
namespace {

constexpr std::string_view kReplacement = "\uFFFD";
constexpr std::string_view kMinus = "\u2212";
constexpr std::string_view kThinSpace = "\u202F";

// The length of the UTF-8 sequence at the start of `text`, 0 if there is none. Refuses overlong
// forms, surrogates and code points beyond U+10FFFF.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool outside = (first == 0xed && byte(1) > 0x9f) || (first == 0xf4 && byte(1) > 0x8f);
  return overlong || outside ? 0 : length;
}

std::string superscript(int64_t value) {
  constexpr std::array<std::string_view, 10> kDigits = {"⁰", "¹", "²", "³", "⁴",
                                                        "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string raised;
  for (const char c : std::to_string(value)) raised += c == '-' ? "⁻" : kDigits[size_t(c - '0')];
  return raised;
}

// Digits in groups of three, from five digits on.
std::string group_digits(const std::string& digits) {
  if (digits.size() < 5) return digits;
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += kThinSpace;
    grouped += digits[i];
  }
  return grouped;
}

std::string with_sign(bool negative, const std::string& magnitude) {
  return negative ? std::string(kMinus) + magnitude : magnitude;
}

std::string name_of_non_finite(double value) {
  return std::isnan(value) ? "NaN" : with_sign(value < 0, "∞");
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const char c = text[0];
    const bool control = static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n';
    if (length == 0 || control || c == 0x7f) {
      out += kReplacement;
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

std::string format_number(double value, int digits) {
  if (!std::isfinite(value)) return name_of_non_finite(value);
  const double size = std::abs(value);
  if (size >= 1e3 && size < 1e7)
    return with_sign(value < 0, group_digits(fmt::format("{:.0f}", size)));
  const std::string plain = fmt::format("{:.{}g}", size, digits);
  const size_t e = plain.find('e');
  if (e == std::string::npos) return with_sign(value < 0, plain);
  const std::string mantissa = plain.substr(0, e);
  const std::string power = format_power(10, std::stoi(plain.substr(e + 1)));
  return with_sign(value < 0, mantissa == "1" ? power : mantissa + "×" + power);
}

std::string format_dof(double value) {
  if (!std::isfinite(value)) return name_of_non_finite(value);
  if (std::abs(value) >= 1e7) return format_number(value);
  return with_sign(value < 0, fmt::format("{:.1f}", std::abs(value)));
}

std::string format_dof(double value, double spread) {
  return spread == 0 ? format_dof(value) : format_dof(value) + " ± " + format_number(spread, 2);
}

std::string format_power(int base, int64_t exponent) {
  return std::to_string(base) + superscript(exponent);
}

std::string format_lambda(double value) {
  int exponent = 0;
  const bool power_of_two = std::isfinite(value) && std::frexp(value, &exponent) == 0.5;
  return power_of_two ? format_power(2, exponent - 1) : format_number(value);
}

std::string format_count(int64_t value) {
  const std::string digits = std::to_string(value);
  return value < 0 ? with_sign(true, group_digits(digits.substr(1))) : group_digits(digits);
}

}  // namespace dofla
