#include "kernels/cpu/reduce.h"

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

struct Level {
  const char* name;
  ReduceFn (*find)(DType dtype, Combine combine, ReduceStage stage);
  bool (*available)();
};

// What is compiled in, in ascending order: a processor that has a level has all before it.
constexpr Level kLevels[] = {
    {"generic", generic::Find, [] { return true; }},
#if SMDDP_X86
    {"avx2", avx2::Find,
     [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }},
    {"avx512", avx512::Find,
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
     }},
#elif SMDDP_ARM64
    {"neon", neon::Find, [] { return true; }},
#endif
};

const Level* BestLevel(const std::string& cap) {
  const Level* best = kLevels;
  for (const Level& level : kLevels) {
    if (!level.available()) break;
    best = &level;
    if (cap == level.name) break;
  }
  return best;
}

const Level* current = BestLevel("");

}  // namespace

void SetIsa(const std::string& isa) { current = BestLevel(isa); }

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
