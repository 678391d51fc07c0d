// Reductions of the fake NCCL: 16-bit floats are rounded after every step, as on a GPU, and minima
// and maxima leave NaNs out, as NCCL's fminf() and __hmin() do.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace fake_nccl {

enum DType {
  kInt8,
  kUint8,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat16,
  kFloat32,
  kFloat64,
  kBfloat16
};
enum Op { kSum, kProduct, kMax, kMin };

struct Half {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

inline float Value(Half h) {
  int exponent = h.bits >> 10 & 31, mantissa = h.bits & 1023;
  float size = exponent == 31  ? (mantissa != 0 ? NAN : INFINITY)
               : exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                               : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return (h.bits & 0x8000) != 0 ? -size : size;
}
inline float Value(Bfloat16 b) {
  uint32_t bits = static_cast<uint32_t>(b.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
template <typename T>
T Value(T value) {
  return value;
}

template <typename T>
T Made(float value) {
  T made{};
  if constexpr (std::is_same_v<T, Half>) {
    float size = std::fabs(value);
    int exponent = 0;
    std::frexp(size, &exponent);
    // The distance of two neighbours, but no less than that of the smallest numbers.
    int last = exponent - 11 < -24 ? -24 : exponent - 11;
    float rounded = std::ldexp(std::nearbyint(std::ldexp(size, -last)), last);
    uint16_t bits = 0x7c00;
    if (rounded < 65520.0f) {
      std::frexp(rounded, &exponent);
      bits =
          rounded < std::ldexp(1.0f, -14)
              ? static_cast<uint16_t>(std::ldexp(rounded, 24))
              : static_cast<uint16_t>(((exponent + 14) << 10) +
                                      static_cast<int>(std::ldexp(rounded, 11 - exponent)) - 1024);
    }
    made.bits = static_cast<uint16_t>(bits | (std::signbit(value) ? 0x8000 : 0));
  } else {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    made.bits = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  return made;
}

template <typename T, typename V>
T To(V value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(value);
  } else {
    return Made<T>(static_cast<float>(value));
  }
}

// Integers wrap around, as a GPU's do; in C++ only unsigned ones may.
template <typename V>
auto Wrapping(V value) {
  if constexpr (std::is_integral_v<V>) {
    return static_cast<uint64_t>(value);
  } else {
    return value;
  }
}

template <typename T>
T Combined(T a, T b, int op) {
  auto x = Value(a), y = Value(b);
  switch (op) {
    case kProduct:
      return To<T>(Wrapping(x) * Wrapping(y));
    case kMax:
      return x > y || y != y ? a : b;
    case kMin:
      return x < y || y != y ? a : b;
    default:
      return To<T>(Wrapping(x) + Wrapping(y));
  }
}

// Calls fn with a value of the dtype; false if there is no such dtype.
template <typename Fn>
bool WithDType(int dtype, Fn&& fn) {
  switch (dtype) {
    case kInt8:
      return fn(int8_t{}), true;
    case kUint8:
      return fn(uint8_t{}), true;
    case kInt32:
      return fn(int32_t{}), true;
    case kInt64:
      return fn(int64_t{}), true;
    case kFloat16:
      return fn(Half{}), true;
    case kFloat32:
      return fn(float{}), true;
    case kFloat64:
      return fn(double{}), true;
    case kBfloat16:
      return fn(Bfloat16{}), true;
    default:
      return false;
  }
}

}  // namespace fake_nccl
