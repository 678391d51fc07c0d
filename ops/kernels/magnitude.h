// |x| as an integer, for what compares magnitudes: on the CPU and on GPUs.
#pragma once

#include "kernels/half.h"

namespace smddp {

// The bits of |x|, which order as the magnitudes do. NaNs are as large as infinities.
SMDDP_INLINE int32_t Magnitude(float x) {
  uint32_t bits = ToBits(x) & 0x7fffffffu;
  return static_cast<int32_t>(bits < 0x7f800000u ? bits : 0x7f800000u);
}

}  // namespace smddp
