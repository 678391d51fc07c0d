#include "capi/smddp.h"
#include "tf/kernels/same_shapes_call.h"
#include "tf/runtime/register.h"

namespace smddp_tf {

void RegisterAllreduce() {
  constexpr unsigned kAttrs = kHasType | kHasReduce | kHasList | kHasDescription;
  RegisterCollective<SameShapesCall<SMDDP_ALLREDUCE>, CreateAttributes<kAttrs>, DestroyAttributes>(
      "Allreduce", {{"tensors: N * T"},
                    {"outputs: N * T"},
                    {kTypeAttr, "N: int >= 1", "reduce_op: int", kPrescaleAttr, kPostscaleAttr,
                     kDescriptionAttr},
                    SameShapes});
}

}  // namespace smddp_tf
