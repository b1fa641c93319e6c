#include "dofla/core/hash.h"

#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <zstd.h>

#include "dofla/core/random.h"

namespace dofla {
namespace {

uint64_t hash(std::string_view text) {
  return xxh64(std::as_bytes(std::span(text)));
}

// The low half of the hash, as libzstd puts it at the end of a frame.
uint32_t checksum_of_zstd(std::string_view text) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  std::string frame(ZSTD_compressBound(text.size()), '\0');
  const size_t size = ZSTD_compress2(context, frame.data(), frame.size(), text.data(), text.size());
  ZSTD_freeCCtx(context);
  EXPECT_FALSE(ZSTD_isError(size));
  uint32_t checksum = 0;
  std::memcpy(&checksum, frame.data() + size - sizeof(checksum), sizeof(checksum));
  return checksum;
}

TEST(Hash, IsTheOneOfTheSpecification) {
  EXPECT_EQ(hash(""), 0xef46db3751d8e999u);
  EXPECT_EQ(hash("a"), 0xd24ec4f1a98c6e5bu);
  EXPECT_EQ(hash("abc"), 0x44bc2cf5ad770999u);
}

TEST(Hash, AgreesWithZstdForEveryLength) {
  Random random(1);
  std::string text;
  for (int length = 0; length < 200; ++length) {
    EXPECT_EQ(static_cast<uint32_t>(hash(text)), checksum_of_zstd(text)) << length;
    text.push_back(static_cast<char>(random.below(256)));
  }
  for (int i = 0; i < 100'000; ++i) text.push_back(static_cast<char>(random.below(256)));
  EXPECT_EQ(static_cast<uint32_t>(hash(text)), checksum_of_zstd(text));
}

}  // namespace
}  // namespace dofla
