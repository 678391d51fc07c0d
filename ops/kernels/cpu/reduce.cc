#include "kernels/cpu/reduce.h"

namespace smddp {

namespace generic {
ReduceFn Find(DType dtype, Combine combine, ReduceStage stage);
}
#if defined(SMDDP_X86)
namespace avx2 {
ReduceFn Find(DType dtype, Combine combine, ReduceStage stage);
}
namespace avx512 {
ReduceFn Find(DType dtype, Combine combine, ReduceStage stage);
}
#endif

namespace {

enum class Isa { kGeneric = 0, kAvx2 = 1, kAvx512 = 2 };

Isa BestIsa() {
#if defined(SMDDP_X86)
  bool f16c = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (f16c && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return Isa::kAvx512;
  }
  if (f16c) return Isa::kAvx2;
#endif
  return Isa::kGeneric;
}

Isa current_isa = BestIsa();

}  // namespace

void SetIsa(const std::string& isa) {
  Isa cap = isa == "generic" ? Isa::kGeneric : isa == "avx2" ? Isa::kAvx2 : Isa::kAvx512;
  current_isa = cap < BestIsa() ? cap : BestIsa();
}

const char* IsaName() {
  return current_isa == Isa::kAvx512 ? "avx512" : current_isa == Isa::kAvx2 ? "avx2" : "generic";
}

ReduceFn FindReduce(DType dtype, Combine combine, ReduceStage stage) {
#if defined(SMDDP_X86)
  if (current_isa == Isa::kAvx512) return avx512::Find(dtype, combine, stage);
  if (current_isa == Isa::kAvx2) return avx2::Find(dtype, combine, stage);
#endif
  return generic::Find(dtype, combine, stage);
}

}  // namespace smddp
