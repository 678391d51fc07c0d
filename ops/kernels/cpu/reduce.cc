#include "kernels/cpu/reduce.h"

#if SMDDP_X86
#include <cpuid.h>
#endif

namespace smddp {

#define SMDDP_DECLARE(isa)                                        \
  namespace isa {                                                 \
  ReduceFn Find(DType dtype, Combine combine, ReduceStage stage); \
  }
SMDDP_DECLARE(generic)
#if SMDDP_X86
SMDDP_DECLARE(avx2)
SMDDP_DECLARE(avx512)
#elif SMDDP_ARM64
SMDDP_DECLARE(neon)
#endif
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

bool HasAvx2() { return Supports(bit_AVX2, 0x6); }

bool HasAvx512() {
  return Supports(bit_AVX2 | bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ, 0xe6);
}
#endif

bool Always() { return true; }

struct Level {
  const char* name;
  ReduceFn (*find)(DType dtype, Combine combine, ReduceStage stage);
  bool (*available)();
};

// What is compiled in, in ascending order: a processor that has a level has all before it.
constexpr Level kLevels[] = {
    {"generic", generic::Find, Always},
#if SMDDP_X86
    {"avx2", avx2::Find, HasAvx2},
    {"avx512", avx512::Find, HasAvx512},
#elif SMDDP_ARM64
    {"neon", neon::Find, Always},
#endif
};

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
