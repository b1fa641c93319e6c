// Everything that leaves the program. Results go to standard output and are checked: a full disk is
// an error. Remarks go to standard error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "dofla/core/bytes.h"
#include "dofla/core/json.h"

namespace dofla::cli {

// Writes and flushes. Throws Error if not everything could be written.
void print(std::string_view text);

// One object on a line of its own. Numbers that are not finite become null; bytes that are not
// UTF-8 become U+FFFD.
void print_json(const OrderedJson& object);

void remark(std::string_view text);  // a line on standard error

std::string grouped(int64_t number);  // 1,234,567

std::string counted(int64_t number, std::string_view noun);  // 1 token, 1,234 tokens

// The text as one printable line of a bearable length.
std::string one_line(std::string_view text);

}  // namespace dofla::cli
