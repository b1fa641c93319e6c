// The bytes of a file as a stream, decompressed on the way.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "dofla/core/file.h"

namespace dofla {

// Fills `to` from its start and returns how many bytes it wrote; 0 only at the end of the file.
// Throws Error, naming the file, on a read error or on a corrupt or truncated compressed stream.
using ByteReader = std::function<size_t(std::span<char> to)>;

// A name that ends in .zst or .gz is decompressed, any other file is read as it is. Memory is
// bounded whatever the file claims: a zstd window of more than 128 MB is refused.
ByteReader open_bytes(const fs::path& path);

}  // namespace dofla
