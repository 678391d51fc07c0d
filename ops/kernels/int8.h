// Int8 compression, an element at a time.
//
// Each chunk of kInt8Chunk elements has a float32 scale, its largest magnitude / 127; an element is
// sent as the integer nearest to its quotient by the scale. A chunk that has NaNs or infinities has
// an infinite scale and zeros as codes, so that all of it becomes NaN.
#pragma once

#include <cstddef>

#include "kernels/half.h"

namespace smddp {

inline constexpr size_t kInt8Chunk = 256;

SMDDP_INLINE size_t Int8Chunks(size_t count) { return (count + kInt8Chunk - 1) / kInt8Chunk; }

// The bits of |x|, which order as the magnitudes do. NaNs are as large as infinities.
SMDDP_INLINE int32_t Magnitude(float x) {
  uint32_t bits = ToBits(x) & 0x7fffffffu;
  return static_cast<int32_t>(bits < 0x7f800000u ? bits : 0x7f800000u);
}

// Of the largest Magnitude().
SMDDP_INLINE float Int8Scale(int32_t largest) {
  return FromBits(static_cast<uint32_t>(largest)) / 127.0f;
}

SMDDP_INLINE int8_t Int8Code(float x, float scale) {
  float quotient = scale == 0.0f ? 0.0f : x / scale;
  // Beyond 127 where the scale is subnormal and so has few bits.
  quotient = quotient > 127.0f ? 127.0f : quotient;
  quotient = quotient < -127.0f ? -127.0f : quotient;
  quotient = quotient == quotient ? quotient : 0.0f;
  // 1.5 * 2^23, where a float has no bits for fractions: the addition rounds to nearest, ties to
  // even, and the lowest byte is the integer in two's complement.
  return static_cast<int8_t>(ToBits(quotient + 12582912.0f) & 0xffu);
}

SMDDP_INLINE float Int8Value(int8_t code, float scale) { return static_cast<float>(code) * scale; }

}  // namespace smddp
