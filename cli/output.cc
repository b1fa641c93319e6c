#include "cli/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "cli/host.h"
#include "dofla/core/error.h"

namespace dofla::cli {

void print(std::string_view text) {
  if (const Host* host = current_host()) return host->print(text);
  const size_t written = std::fwrite(text.data(), 1, text.size(), stdout);
  if (written != text.size() || std::fflush(stdout) != 0)
    fail("cannot write to standard output: {}", std::strerror(errno));
}

void print_json(const OrderedJson& object) {
  print(object.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
}

void remark(std::string_view text) {
  if (const Host* host = current_host()) return host->remark(text);
  fmt::print(stderr, "{}\n", text);
}

std::string grouped(int64_t number) {
  std::string digits = fmt::format("{}", number);
  const size_t first = number < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, 1, ',');
  return digits;
}

std::string counted(int64_t number, std::string_view noun) {
  return fmt::format("{} {}{}", grouped(number), noun, number == 1 ? "" : "s");
}

std::string one_line(std::string_view text) {
  constexpr size_t kLongest = 1000;
  std::string line;
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    line += byte < 0x20 || byte == 0x7f ? ' ' : c;
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  if (text.size() > kLongest) line += "…";
  return line;
}

}  // namespace dofla::cli
