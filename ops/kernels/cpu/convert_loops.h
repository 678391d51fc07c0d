// Elements of a tensor from and to the type in which they are computed: compiled once per SIMD
// level, as the loops that include it are (reduce_loops.h). Only float16 needs intrinsics.
#include <cstddef>
#include <cstdint>

#if defined(__F16C__)
#include <immintrin.h>  // for _mm256_cvtph_ps
#endif
#if SMDDP_NEON_HALF
#include <arm_neon.h>
#endif

#include "kernels/half.h"

namespace smddp {
namespace SMDDP_ISA {

template <typename T, typename Acc>
inline void Load(const T* __restrict from, Acc* __restrict to, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = static_cast<Acc>(from[i]);
}
inline void Load(const Bfloat16* __restrict from, float* __restrict to, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = Bfloat16ToFloat(from[i].bits);
}
inline void Load(const Half* __restrict from, float* __restrict to, size_t n) {
  size_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(half));
  }
#elif SMDDP_NEON_HALF
  for (; i + 8 <= n; i += 8) {
    float16x8_t half = vreinterpretq_f16_u16(vld1q_u16(&from[i].bits));
    vst1q_f32(to + i, vcvt_f32_f16(vget_low_f16(half)));
    vst1q_f32(to + i + 4, vcvt_high_f32_f16(half));
  }
#endif
  for (; i < n; ++i) to[i] = HalfToFloat(from[i].bits);
}

template <typename T, typename Acc>
inline void Store(const Acc* __restrict from, T* __restrict to, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = static_cast<T>(from[i]);
}
inline void Store(const float* __restrict from, Bfloat16* __restrict to, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i].bits = FloatToBfloat16(from[i]);
}
inline void Store(const float* __restrict from, Half* __restrict to, size_t n) {
  size_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), half);
  }
#elif SMDDP_NEON_HALF
  for (; i + 8 <= n; i += 8) {
    float16x4_t low = vcvt_f16_f32(vld1q_f32(from + i));
    float16x8_t half = vcvt_high_f16_f32(low, vld1q_f32(from + i + 4));
    vst1q_u16(&to[i].bits, vreinterpretq_u16_f16(half));
  }
#endif
  for (; i < n; ++i) to[i].bits = FloatToHalf(from[i]);
}

}  // namespace SMDDP_ISA
}  // namespace smddp
