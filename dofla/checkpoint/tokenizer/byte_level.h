// GPT-2's alphabet: every byte has a printable character, so that any text is a string of them.
#pragma once

#include <string>
#include <string_view>

namespace dofla {

// Appends each byte's character (one or two bytes of UTF-8), "Ġ" for a space.
void append_byte_characters(std::string_view bytes, std::string& out);

// Appends the bytes that `token` stands for; the token as it is if one of its characters is not of
// the alphabet (added tokens are written in plain text).
void append_token_bytes(std::string_view token, std::string& out);

}  // namespace dofla
