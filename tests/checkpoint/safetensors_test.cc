#include "dofla/checkpoint/safetensors.h"

#include <cstring>

#include <gtest/gtest.h>

#include "dofla/core/json.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/full_disk.h"

namespace dofla {
namespace {

using test::expect_error;

class SafetensorsTest : public testing::Test {
 protected:
  void write(uint64_t header_length, const std::string& header, size_t data_bytes) {
    std::string file(8, '\0');
    std::memcpy(file.data(), &header_length, 8);
    write_whole(path_, file + header + std::string(data_bytes, '\0'));
  }
  void write(const std::string& header, size_t data_bytes) {
    write(header.size(), header, data_bytes);
  }

  void expect_refused(std::initializer_list<std::string_view> parts) {
    expect_error([&] { Safetensors file(path_); }, {path_.string()});
    expect_error([&] { Safetensors file(path_); }, parts);
  }
  void expect_refused(const std::string& header, size_t data_bytes,
                      std::initializer_list<std::string_view> parts) {
    SCOPED_TRACE(header.substr(0, 200));
    write(header, data_bytes);
    expect_refused(parts);
  }

  // A header with one tensor, given as its three fields.
  static std::string one(const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
  }
  // Two tensors of bytes at these offsets.
  static std::string two(int begin_a, int end_a, int begin_b, int end_b) {
    const auto entry = [](int begin, int end) {
      return Json{{"dtype", "U8"}, {"shape", {end - begin}}, {"data_offsets", {begin, end}}};
    };
    return Json{{"a", entry(begin_a, end_a)}, {"b", entry(begin_b, end_b)}}.dump();
  }

  test::ScratchFolder scratch_;
  fs::path path_ = scratch_.path() / "model.safetensors";
};

template <class T>
Tensor filled(const Shape& shape) {
  Tensor tensor(shape, DTypeOf<T>::value);
  auto* bytes = static_cast<uint8_t*>(tensor.mutable_raw());
  for (int64_t i = 0; i < tensor.bytes(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 + 11);
  return tensor;
}

void expect_equal(const Tensor& found, const Tensor& expected) {
  ASSERT_EQ(found.dtype(), expected.dtype());
  ASSERT_EQ(found.shape(), expected.shape());
  EXPECT_EQ(std::memcmp(found.raw(), expected.raw(), static_cast<size_t>(expected.bytes())), 0);
}

TEST_F(SafetensorsTest, WhatIsWrittenIsReadBack) {
  Tensor flags({3}, DType::kBool);
  std::memset(flags.mutable_raw(), 1, 3);
  const NamedTensors tensors = {{"u8", filled<uint8_t>({3})},  // first, so that order matters
                                {"bool", flags},
                                {"bf16", filled<BFloat16>({5})},
                                {"f16", filled<Float16>({1, 3})},
                                {"f32", filled<float>({2, 3})},
                                {"i32", filled<int32_t>({3, 1, 1})},
                                {"f64", filled<double>({2})},
                                {"i64", filled<int64_t>({1})},
                                {"scalar", filled<float>({})},
                                {"empty", filled<float>({4, 0, 2})},
                                {"é \"quoted\"\n", filled<float>({1})}};
  write_safetensors(path_, tensors, {{"format", "pt"}, {"note", "ü"}});
  const Safetensors file(path_);
  ASSERT_EQ(file.names().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(file.contains(name));
    const Tensor found = file.tensor(name);
    expect_equal(found, tensor);
    EXPECT_THROW(Tensor(found).mutable_raw(), std::invalid_argument);  // mapped, not copied
    EXPECT_EQ(reinterpret_cast<uintptr_t>(found.raw()) %
                  static_cast<uintptr_t>(size_in_bytes(found.dtype())),
              0u);
  }
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("note"), "ü");
  EXPECT_FALSE(file.contains("x"));
  expect_error([&] { file.tensor("x"); }, {path_.string(), "no tensor x"});
}

TEST_F(SafetensorsTest, AMatrixOfBytesAndItsFactorsAreOneTensor) {
  const Tensor whole = filled<int8_t>({2, 3});
  Tensor factors({2, 1});
  factors.data<float>()[0] = 0.5f, factors.data<float>()[1] = 3;
  write_safetensors(path_, {{"w", Tensor::scaled(whole, factors)}, {"b", whole}});
  const Safetensors file(path_);
  EXPECT_EQ(file.names(), (std::vector<std::string>{"b", "w"}));
  EXPECT_FALSE(file.tensor("b").is_scaled());
  const Tensor read = file.tensor("w");
  ASSERT_TRUE(read.is_scaled());
  EXPECT_EQ(std::memcmp(read.raw(), whole.raw(), 6), 0);
  EXPECT_EQ(std::memcmp(read.factors().raw(), factors.raw(), 8), 0);
}

TEST_F(SafetensorsTest, RefusesFactorsThatDoNotFitTheirMatrix) {
  for (const Shape& shape : {Shape{3, 1}, Shape{1, 2}, Shape{2}, Shape{2, 3}}) {
    write_safetensors(path_, {{"w", filled<int8_t>({2, 3})}, {"w_scale", filled<float>(shape)}});
    expect_refused({"w_scale", "expected F32 [2, 1] or [1, 3]", "found F32", to_string(shape)});
  }
  write_safetensors(path_, {{"w", filled<int8_t>({2, 3})}, {"w_scale", filled<double>({2, 1})}});
  expect_refused({"w_scale", "found F64"});
}

TEST_F(SafetensorsTest, AFileWithoutTensorsIsSound) {
  write_safetensors(path_, {});
  EXPECT_TRUE(Safetensors(path_).names().empty());
}

TEST_F(SafetensorsTest, TensorsOutliveTheFileObject) {
  write_safetensors(path_, {{"w", filled<float>({100})}});
  const Tensor tensor = Safetensors(path_).tensor("w");
  expect_equal(tensor, filled<float>({100}));
}

TEST_F(SafetensorsTest, ReplacingAFileLeavesItsReadersAlone) {
  write_safetensors(path_, {{"w", filled<float>({100})}});
  const Tensor old = Safetensors(path_).tensor("w");
  write_safetensors(path_, {{"w", Tensor::zeros({2})}});
  expect_equal(old, filled<float>({100}));
  expect_equal(Safetensors(path_).tensor("w"), Tensor::zeros({2}));
}

TEST_F(SafetensorsTest, TensorsAtOddAddressesAreCopied) {
  for (const int padding : {0, 1, 2, 3, 4, 5, 6, 7}) {
    std::string header = one("\"F64\"", "[2]", "[0,16]") + std::string(padding, ' ');
    write(header, 16);
    const Tensor tensor = Safetensors(path_).tensor("w");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.raw()) % 8, 0u);
    expect_equal(tensor, Tensor::zeros({2}, DType::kF64));
  }
}

TEST_F(SafetensorsTest, RefusesEveryTruncation) {
  write_safetensors(path_, {{"a", filled<float>({2})}, {"b", filled<uint8_t>({3})}});
  const std::string whole = read_text(path_);
  for (size_t size = 0; size < whole.size(); ++size) {
    SCOPED_TRACE(size);
    write_whole(path_, whole.substr(0, size));
    expect_refused({path_.string()});
  }
  write_whole(path_, "1234567");
  expect_refused({"7 bytes is too short"});
  write_whole(path_, whole + "x");
  expect_refused({"belong to no tensor"});
}

TEST_F(SafetensorsTest, RefusesAHeaderPastTheEnd) {
  write(3, "{}", 0);
  expect_refused({"header of 3 bytes reaches past the end", "10 bytes"});
  write(UINT64_MAX, "{}", 0);
  expect_refused({"header of 18446744073709551615 bytes"});
  write(UINT64_MAX - 7, "{}", 100);  // 8 + length wraps around to 0
  expect_refused({"header of 18446744073709551608 bytes"});
  write(100'000'001, "{}", 0);
  expect_refused({"more than the 100000000 allowed"});
}

TEST_F(SafetensorsTest, RefusesAHeaderThatIsNoObject) {
  expect_refused("", 0, {"header: not valid JSON"});
  expect_refused("{", 0, {"header: not valid JSON"});
  expect_refused("[]", 0, {"not a JSON object"});
  expect_refused("null", 0, {"not a JSON object"});
  expect_refused("{\"\xff\":1}", 0, {"header: not valid JSON"});
  expect_refused(std::string(1000, '['), 0, {"nested deeper than 64"});
  expect_refused(R"({"w":[]})", 0, {"w: not a JSON object"});
  expect_refused(R"({"__metadata__":"x"})", 0, {"__metadata__: not a JSON object"});
  expect_refused(R"({"__metadata__":{"step":3}})", 0, {"__metadata__: step", "found 3"});
}

TEST_F(SafetensorsTest, RefusesATensorGivenTwice) {
  const std::string entry = R"("w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  expect_refused("{" + entry + "," + entry + "}", 1, {"key \"w\" given twice"});
}

TEST_F(SafetensorsTest, RefusesBadTypes) {
  expect_refused(R"({"w":{"shape":[1],"data_offsets":[0,4]}})", 4, {"w: no dtype"});
  expect_refused(one("3", "[1]", "[0,4]"), 4, {"w: no dtype"});
  expect_refused(one("\"F31\"", "[1]", "[0,4]"), 4, {"w: unknown dtype \"F31\"", "F32"});
  expect_refused(one("\"f32\"", "[1]", "[0,4]"), 4, {"w: unknown dtype \"f32\""});
  expect_refused(one("\"F8_E4M3\"", "[4]", "[0,4]"), 4, {"w: unknown dtype \"F8_E4M3\""});
}

TEST_F(SafetensorsTest, RefusesBadShapes) {
  expect_refused(R"({"w":{"dtype":"F32","data_offsets":[0,4]}})", 4, {"w: no shape"});
  expect_refused(one("\"F32\"", "1", "[0,4]"), 4, {"w: no shape"});
  expect_refused(one("\"F32\"", "[-1]", "[0,4]"), 4, {"w: bad shape [-1]"});
  expect_refused(one("\"F32\"", "[1.0]", "[0,4]"), 4, {"w: bad shape [1.0]"});
  expect_refused(one("\"F32\"", "[\"1\"]", "[0,4]"), 4, {"w: bad shape"});
  expect_refused(one("\"F32\"", "[null]", "[0,4]"), 4, {"w: bad shape"});
  expect_refused(one("\"F32\"", "[9223372036854775808]", "[0,4]"), 4, {"w: bad shape"});
}

TEST_F(SafetensorsTest, RefusesShapesThatOverflow) {
  expect_refused(one("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0, {"w", "too many elements"});
  expect_refused(one("\"F64\"", "[2305843009213693952]", "[0,0]"), 0, {"w", "too many elements"});
  expect_refused(one("\"U8\"", "[9223372036854775807,3]", "[0,4]"), 4, {"w", "too many elements"});
}

TEST_F(SafetensorsTest, RefusesSizesThatDoNotFitTheShape) {
  expect_refused(one("\"F32\"", "[2]", "[0,4]"), 4, {"w: F32 of [2] takes 8 bytes, found 4"});
  expect_refused(one("\"BF16\"", "[]", "[0,4]"), 4, {"w: BF16 of [] takes 2 bytes, found 4"});
  expect_refused(one("\"F32\"", "[0]", "[0,4]"), 4, {"w: F32 of [0] takes 0 bytes, found 4"});
}

TEST_F(SafetensorsTest, RefusesBadOffsets) {
  expect_refused(R"({"w":{"dtype":"F32","shape":[1]}})", 4, {"w: no data_offsets"});
  for (const char* offsets : {"4", "[4]", "[0,4,8]", "[0,4.0]", "[-4,0]", "[\"0\",4]", "{}"})
    expect_refused(one("\"F32\"", "[1]", offsets), 4, {"w: no data_offsets"});
  expect_refused(one("\"F32\"", "[1]", "[4,0]"), 4, {"w: offsets [4,0] reach outside"});
  expect_refused(one("\"F32\"", "[1]", "[0,5]"), 4, {"w: offsets [0,5] reach outside the 4 bytes"});
  expect_refused(one("\"F32\"", "[1]", "[18446744073709551612,18446744073709551615]"), 4,
                 {"w: offsets", "reach outside"});
}

TEST_F(SafetensorsTest, RefusesOverlaps) {
  expect_refused(two(0, 3, 2, 4), 4, {"b: overlaps"});
  expect_refused(two(0, 4, 1, 2), 4, {"b: overlaps"});
  expect_refused(two(0, 4, 0, 4), 4, {"b: overlaps"});
}

TEST_F(SafetensorsTest, RefusesBytesOfNoTensor) {
  expect_refused(two(1, 2, 2, 4), 4, {"bytes 0 to 1 belong to no tensor"});
  expect_refused(two(0, 1, 2, 4), 4, {"bytes 1 to 2 belong to no tensor"});
  expect_refused(two(0, 2, 2, 3), 4, {"bytes 3 to 4 belong to no tensor"});
  expect_refused("{}", 4, {"bytes 0 to 4 belong to no tensor"});
}

TEST_F(SafetensorsTest, MessagesCarryNoControlCharacters) {
  write("{\"evil\\n\\u001b[2J\":{}}", 0);
  try {
    Safetensors file(path_);
    FAIL();
  } catch (const Error& error) {
    for (const char c : std::string_view(error.what())) EXPECT_TRUE(c >= ' ' && c <= '~');
  }
}

TEST_F(SafetensorsTest, RefusesWhatIsNoFile) {
  expect_refused({"No such file"});
  fs::create_directory(path_);
  expect_refused({"not a regular file"});
}

TEST_F(SafetensorsTest, AFailedWriteLeavesTheOldFile) {
  write_safetensors(path_, {{"w", filled<float>({10})}});
  expect_error(
      [&] {
        const test::FullDisk disk(1000);
        write_safetensors(path_, {{"w", filled<float>({1000})}});
      },
      {path_.string(), "cannot write"});
  expect_equal(Safetensors(path_).tensor("w"), filled<float>({10}));
  const fs::directory_iterator files(scratch_.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST_F(SafetensorsTest, WritesOnlyWhatCanBeReadBack) {
  const Tensor x({1});
  EXPECT_THROW(write_safetensors(path_, {{"w", x}, {"w", x}}), std::invalid_argument);
  EXPECT_THROW(write_safetensors(path_, {{"w", Tensor()}}), std::invalid_argument);
  EXPECT_THROW(write_safetensors(path_, {{"__metadata__", x}}), std::invalid_argument);
  EXPECT_THROW(write_safetensors(path_, {{"\xff", x}}), std::invalid_argument);
  EXPECT_THROW(write_safetensors(path_, {{"w", x}}, {{"a", "\xff"}}), std::invalid_argument);
  EXPECT_TRUE(fs::is_empty(scratch_.path()));
}

}  // namespace
}  // namespace dofla
