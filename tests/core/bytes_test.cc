#include "dofla/core/bytes.h"

#include <gtest/gtest.h>

namespace dofla {
namespace {

TEST(Bytes, AreWrittenWithAUnit) {
  EXPECT_EQ(with_bytes_unit(999), "999 bytes");
  EXPECT_EQ(with_bytes_unit(1000), "1.0 kB");
  EXPECT_EQ(with_bytes_unit(11'800'000), "11.8 MB");
  EXPECT_EQ(with_bytes_unit(5'000'000'000'000'000), "5000.0 TB");
}

TEST(Bytes, AreReadWithAUnit) {
  EXPECT_EQ(read_bytes("3MB"), 3'000'000);
  EXPECT_EQ(read_bytes("3 MB"), 3'000'000);
  EXPECT_EQ(read_bytes("1.1MB"), 1'100'000);
  EXPECT_EQ(read_bytes("500kB"), 500'000);
  EXPECT_EQ(read_bytes("0.5GB"), 500'000'000);
  EXPECT_EQ(read_bytes("2TB"), 2'000'000'000'000);
  EXPECT_EQ(read_bytes("123456"), 123'456);
  EXPECT_EQ(read_bytes("7B"), 7);
}

TEST(Bytes, AreNothingElse) {
  for (const char* text : {"",      "MB",   "3XB", "3M",    "3mb",  "3MiB",      "3 MB ",
                           "3  MB", " 3MB", "0",   "0MB",   "-3MB", "1.5",       "0.0001kB",
                           "1e6",   "nan",  "inf", "infMB", "0x10", "9999999TB", "3,000"})
    EXPECT_EQ(read_bytes(text), std::nullopt) << text;
}

}  // namespace
}  // namespace dofla
