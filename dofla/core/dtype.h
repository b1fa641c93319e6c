// Element types, spelled as the safetensors format spells them.
#pragma once

#include <bit>
#include <cstdint>

#include "dofla/core/names.h"

namespace dofla {

// kBool only passes through: some checkpoints carry attention masks that nothing reads.
enum class DType { kF64, kF32, kF16, kBF16, kI64, kI32, kI8, kU8, kBool };

template <>
struct Names<DType> {
  static constexpr std::string_view kWhat = "type";
  static constexpr std::array kAll = {
      Name{DType::kF64, "F64"},   Name{DType::kF32, "F32"}, Name{DType::kF16, "F16"},
      Name{DType::kBF16, "BF16"}, Name{DType::kI64, "I64"}, Name{DType::kI32, "I32"},
      Name{DType::kI8, "I8"},     Name{DType::kU8, "U8"},   Name{DType::kBool, "BOOL"}};
};

int64_t size_in_bytes(DType dtype);
bool is_float(DType dtype);  // F64, F32, F16 or BF16

// The 16-bit floats are storage types only: all arithmetic happens in float.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

inline float to_float(BFloat16 x) {
  return std::bit_cast<float>(uint32_t{x.bits} << 16);
}
float to_float(Float16 x);
BFloat16 to_bfloat16(float x);  // rounds to nearest even; NaN stays NaN

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::kI8;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};

}  // namespace dofla
