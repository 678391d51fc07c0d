// What ranks bring to an allreduce in the tests, and what must come of it, exactly.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "collective/request.h"
#include "core/dtype.h"

namespace smddp_test {

template <typename T>
struct TypeOf;
template <>
struct TypeOf<float> {
  static constexpr smddp::DType value = smddp::DType::kFloat32;
};
template <>
struct TypeOf<double> {
  static constexpr smddp::DType value = smddp::DType::kFloat64;
};
template <>
struct TypeOf<int32_t> {
  static constexpr smddp::DType value = smddp::DType::kInt32;
};
template <>
struct TypeOf<int64_t> {
  static constexpr smddp::DType value = smddp::DType::kInt64;
};
template <>
struct TypeOf<uint8_t> {
  static constexpr smddp::DType value = smddp::DType::kUint8;
};
template <>
struct TypeOf<int16_t> {
  static constexpr smddp::DType value = smddp::DType::kInt16;
};
template <>
struct TypeOf<int8_t> {
  static constexpr smddp::DType value = smddp::DType::kInt8;
};

// Element i of rank r: small, different by rank and position.
template <typename T>
T Input(int rank, size_t i) {
  return static_cast<T>(1 + (static_cast<size_t>(rank) * 3 + i) % 5);
}

template <typename T>
T Expected(smddp::ReduceOp op, int size, size_t i) {
  double sum = 0, low = 100, high = 0, product = 1;
  for (int r = 0; r < size; ++r) {
    double v = static_cast<double>(Input<T>(r, i));
    sum += v;
    low = std::min(low, v);
    high = std::max(high, v);
    product *= v;
  }
  switch (op) {
    case smddp::ReduceOp::kAverage:
      return std::is_integral_v<T> ? static_cast<T>(static_cast<int64_t>(sum) / size)
                                   : static_cast<T>(sum) * static_cast<T>(1.0 / size);
    case smddp::ReduceOp::kMin:
      return static_cast<T>(low);
    case smddp::ReduceOp::kMax:
      return static_cast<T>(high);
    case smddp::ReduceOp::kProduct:
      // wraps as the type does
      return std::is_integral_v<T> ? static_cast<T>(static_cast<int64_t>(product))
                                   : static_cast<T>(product);
    default:
      return static_cast<T>(sum);
  }
}

}  // namespace smddp_test
