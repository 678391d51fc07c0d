#include "kernels/cpu/reduce.h"

#include "kernels/cpu/isa.h"

#if SMDDP_X86
#include <cpuid.h>
#endif

namespace smddp {

#define SMDDP_DECLARE(isa)                                        \
  namespace isa {                                                 \
  ReduceFn Find(DType dtype, Combine combine, ReduceStage stage); \
  bool Available();                                               \
  }
SMDDP_FOR_EACH_ISA(SMDDP_DECLARE)
#undef SMDDP_DECLARE

namespace {

#if SMDDP_X86
// Asks the processor, because __builtin_cpu_supports() asks the compiler's run-time library, and
// not every compiler's knows: clang in the guise of `zig c++` links one that denies everything.
bool Supports(unsigned leaf7_ebx, unsigned xcr0) {
  constexpr unsigned kOfLeaf1 = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & kOfLeaf1) != kOfLeaf1) return false;
  // Whether the operating system saves the registers.
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & xcr0) != xcr0) return false;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (ebx & leaf7_ebx) == leaf7_ebx;
}
#endif

}  // namespace

bool generic::Available() { return true; }
#if SMDDP_X86
bool avx2::Available() { return Supports(bit_AVX2, 0x6); }
bool avx512::Available() {
  return Supports(bit_AVX2 | bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ, 0xe6);
}
#elif SMDDP_ARM64
bool neon::Available() { return true; }
#endif

namespace {

struct Level {
  const char* name;
  ReduceFn (*find)(DType dtype, Combine combine, ReduceStage stage);
  bool (*available)();
};

#define SMDDP_LEVEL(isa) {#isa, isa::Find, isa::Available},
constexpr Level kLevels[] = {SMDDP_FOR_EACH_ISA(SMDDP_LEVEL)};
#undef SMDDP_LEVEL

const Level* BestLevel() {
  const Level* best = kLevels;
  for (const Level& level : kLevels) {
    if (!level.available()) break;
    best = &level;
  }
  return best;
}

// Asked once: in a virtual machine the question is dear.
const Level* const kBest = BestLevel();
const Level* current = kBest;

}  // namespace

void SetIsa(const std::string& isa) {
  current = kLevels;
  while (current != kBest && isa != current->name) ++current;
}

size_t IsaIndex() { return static_cast<size_t>(current - kLevels); }

const char* IsaName() { return current->name; }

std::string CompiledIsas() {
  std::string names;
  for (const Level& level : kLevels) names += (names.empty() ? "" : " ") + std::string(level.name);
  return names;
}

ReduceFn FindReduce(DType dtype, Combine combine, ReduceStage stage) {
  return current->find(dtype, combine, stage);
}

}  // namespace smddp
