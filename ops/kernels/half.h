// 16-bit floats as their bits, and float32 from and to them, in plain C++: for the loops of the CPU
// where no instruction converts, and for the GPU's kernels, so that both give the same bits.
//
// Always inlined: the loops are compiled for several instruction sets, and the linker must not
// choose one of these functions for all of them.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define SMDDP_INLINE_MEMBER __forceinline__ __host__ __device__
#else
#define SMDDP_INLINE_MEMBER inline __attribute__((always_inline))
#endif
#define SMDDP_INLINE static SMDDP_INLINE_MEMBER

namespace smddp {

struct Half {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

SMDDP_INLINE float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

SMDDP_INLINE uint32_t ToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

SMDDP_INLINE float HalfToFloat(uint16_t h) {
  uint32_t sign = (h & 0x8000u) << 16, rest = h & 0x7fffu;
  if (rest >= 0x7c00u) {  // infinity, or a NaN, which becomes a quiet one
    uint32_t quiet = rest > 0x7c00u ? 0x400000u : 0u;
    return FromBits(sign | 0x7f800000u | quiet | ((rest & 0x3ffu) << 13));
  }
  if (rest < 0x0400u) {  // zero and subnormals: rest * 2^-24 is exact
    float value = static_cast<float>(rest) * 5.9604644775390625e-08f;
    return FromBits(ToBits(value) | sign);
  }
  return FromBits(sign | ((rest << 13) + 0x38000000u));
}

// Rounds to nearest, ties to even, like the hardware instruction.
SMDDP_INLINE uint16_t FloatToHalf(float value) {
  uint32_t bits = ToBits(value), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((rest >> 13) & 0x3ffu));
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (rest < 0x38800000u) {                                               // subnormal or zero
    float magic = FromBits(rest) + 0.5f;  // aligns 2^-24 with the last bit of the mantissa
    return static_cast<uint16_t>(sign | (ToBits(magic) - 0x3f000000u));
  }
  uint32_t odd = (rest >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((rest - 0x38000000u + 0xfffu + odd) >> 13));
}

SMDDP_INLINE float Bfloat16ToFloat(uint16_t b) { return FromBits(static_cast<uint32_t>(b) << 16); }

SMDDP_INLINE uint16_t FloatToBfloat16(float value) {
  uint32_t bits = ToBits(value);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

}  // namespace smddp
