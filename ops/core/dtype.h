// The table of element types. Codes are TensorFlow's DataType numbers, so no layer has to translate
// them; the core itself never includes a TensorFlow header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smddp {

enum class DType : int32_t {
  kFloat32 = 1,
  kFloat64 = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kInt64 = 9,
  kBool = 10,
  kBfloat16 = 14,
  kUint16 = 17,
  kFloat16 = 19,
};

struct DTypeInfo {
  DType dtype;
  const char* name;
  size_t size;        // bytes of one element
  size_t accum_size;  // bytes of the accumulator type; 0: not reducible
};

// 16-bit floats accumulate in float32; integers are widened so that an average is exact as long as
// the sum fits the wider type.
inline constexpr DTypeInfo kDTypes[] = {
    {DType::kFloat32, "float32", 4, 4},   {DType::kFloat64, "float64", 8, 8},
    {DType::kInt32, "int32", 4, 8},       {DType::kUint8, "uint8", 1, 4},
    {DType::kInt16, "int16", 2, 4},       {DType::kInt8, "int8", 1, 4},
    {DType::kInt64, "int64", 8, 8},       {DType::kBool, "bool", 1, 0},
    {DType::kBfloat16, "bfloat16", 2, 4}, {DType::kUint16, "uint16", 2, 0},
    {DType::kFloat16, "float16", 2, 4},
};

// Returns nullptr for a code that is not in the table.
inline const DTypeInfo* FindDType(int32_t code) {
  for (const DTypeInfo& info : kDTypes) {
    if (static_cast<int32_t>(info.dtype) == code) return &info;
  }
  return nullptr;
}

inline const DTypeInfo& Info(DType dtype) { return *FindDType(static_cast<int32_t>(dtype)); }

}  // namespace smddp
