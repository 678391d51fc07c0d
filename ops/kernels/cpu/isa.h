// The SIMD levels for which the host's loops are compiled, and which of them runs.
#pragma once

#include <cstddef>

namespace smddp {

// use(level) for each, in ascending order: a processor that has a level has all before it. The
// loops of a level are in a namespace of its name.
#if SMDDP_X86
#define SMDDP_FOR_EACH_ISA(use) use(generic) use(avx2) use(avx512)
#elif SMDDP_ARM64
#define SMDDP_FOR_EACH_ISA(use) use(generic) use(neon)
#else
#define SMDDP_FOR_EACH_ISA(use) use(generic)
#endif

// The place among these of the level in use (SetIsa() in reduce.h).
size_t IsaIndex();

}  // namespace smddp
