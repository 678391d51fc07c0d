// Threads of TensorFlow's pools compute with zeros in place of subnormal numbers (tsl's
// ScopedFlushDenormal), other threads do not.
#pragma once

#include <cstdint>

#if SMDDP_X86
#include <xmmintrin.h>
#endif

namespace smddp {

// While it lives, this thread takes subnormal numbers for what they are: which thread of a rank
// computes is chance, and all ranks shall get the same bits.
class KeepSubnormals {
 public:
  KeepSubnormals() : before_(Read()) {
    if ((before_ & kZeros) != 0) Write(before_ & ~kZeros);
  }
  ~KeepSubnormals() {
    if ((before_ & kZeros) != 0) Write(before_);
  }
  KeepSubnormals(const KeepSubnormals&) = delete;
  KeepSubnormals& operator=(const KeepSubnormals&) = delete;

 private:
#if SMDDP_X86
  static constexpr uint64_t kZeros = 0x8040;  // of results, and of operands
  static uint64_t Read() { return _mm_getcsr(); }
  static void Write(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif SMDDP_ARM64
  static constexpr uint64_t kZeros = 1 << 24 | 1 << 19;  // and of 16-bit floats
  static uint64_t Read() {
    uint64_t mode;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void Write(uint64_t mode) { __asm__ __volatile__("msr fpcr, %0" : : "r"(mode)); }
#else
  static constexpr uint64_t kZeros = 0;
  static uint64_t Read() { return 0; }
  static void Write(uint64_t) {}
#endif
  const uint64_t before_;
};

}  // namespace smddp
