// The input is a tokenizer.json, a zero byte, and a text to encode with it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "dofla/checkpoint/tokenizer.h"
#include "dofla/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view text = zero == input.npos ? std::string_view() : input.substr(zero + 1);
  try {
    const auto tokenizer = dofla::Tokenizer::parse(input.substr(0, zero), "fuzz");
    const auto ids = tokenizer.encode(text);
    dofla::StreamDecoder stream(tokenizer);
    std::string streamed;
    for (const int64_t id : ids) streamed += stream.next(id);
    streamed += stream.finish();
    if (streamed != tokenizer.decode(ids)) std::abort();
    if (tokenizer.encode(text) != ids) std::abort();  // with a warm cache
  } catch (const dofla::Error&) {
    // A refusal is a fine answer.
  }
  return 0;
}
