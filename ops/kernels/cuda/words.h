// Elements and aligned words of 16 bytes, the widest that a GPU loads and stores at once, or of 8:
// for the bodies of kernels, which are compiled for GPUs, and for the CPU in the tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/half.h"

namespace smddp {

#if defined(__CUDACC__)
#define SMDDP_ANY_TYPE
#define SMDDP_UNROLL _Pragma("unroll")
#else
#define SMDDP_ANY_TYPE [[gnu::may_alias]]  // it stands for elements of any type
#define SMDDP_UNROLL
#endif

struct SMDDP_ANY_TYPE alignas(16) Word {
  uint64_t low, high;
};

constexpr unsigned kWord = sizeof(Word);

struct SMDDP_ANY_TYPE alignas(8) HalfWord {
  uint64_t bits;
};

template <typename W>
SMDDP_INLINE W LoadWord(const char* from) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(W) == kWord) {
    ulonglong2 word = *reinterpret_cast<const ulonglong2*>(from);
    return {word.x, word.y};
  }
#endif
  return *reinterpret_cast<const W*>(from);
}

template <typename W>
SMDDP_INLINE void StoreWord(char* to, W word) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(W) == kWord) {
    *reinterpret_cast<ulonglong2*>(to) = make_ulonglong2(word.low, word.high);
    return;
  }
#endif
  *reinterpret_cast<W*>(to) = word;
}

template <typename T>
SMDDP_INLINE T LoadOne(const char* from) {
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<const T*>(from);
#else
  T one;
  std::memcpy(&one, from, sizeof one);
  return one;
#endif
}

template <typename T>
SMDDP_INLINE void StoreOne(char* to, T one) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<T*>(to) = one;
#else
  std::memcpy(to, &one, sizeof one);
#endif
}

SMDDP_INLINE float Wide(Half x) { return HalfToFloat(x.bits); }
SMDDP_INLINE float Wide(Bfloat16 x) { return Bfloat16ToFloat(x.bits); }
SMDDP_INLINE float Wide(float x) { return x; }
SMDDP_INLINE double Wide(double x) { return x; }

template <typename To, typename Acc>
SMDDP_INLINE To Narrow(Acc x) {
  if constexpr (std::is_same_v<To, Half>) {
    return {FloatToHalf(x)};
  } else if constexpr (std::is_same_v<To, Bfloat16>) {
    return {FloatToBfloat16(x)};
  } else {
    return x;
  }
}

}  // namespace smddp
