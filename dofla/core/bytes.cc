#include "dofla/core/bytes.h"

#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

namespace dofla {

std::string with_bytes_unit(int64_t bytes) {
  constexpr std::array kUnits = {"bytes", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} bytes", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::optional<int64_t> read_bytes(std::string_view text) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  constexpr std::array kUnits = {Unit{"", 1},     Unit{"B", 1},    Unit{"kB", 1e3},
                                 Unit{"MB", 1e6}, Unit{"GB", 1e9}, Unit{"TB", 1e12}};
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  std::string_view rest = text.substr(static_cast<size_t>(end - text.data()));
  if (rest.starts_with(' ')) rest.remove_prefix(1);
  for (const Unit& unit : kUnits) {
    if (rest != unit.name) continue;
    const double bytes = number * unit.bytes;
    if (!(bytes >= 1 && bytes <= 1e15)) return std::nullopt;
    const double whole = std::round(bytes);
    // Half a byte is a mistake, what rounding did to 1.1 · 1,000,000 is not.
    if (std::abs(bytes - whole) > 1e-9 * bytes) return std::nullopt;
    return static_cast<int64_t>(whole);
  }
  return std::nullopt;
}

}  // namespace dofla
