#include "capi/smddp.h"
#include "tf/kernels/same_shapes_call.h"
#include "tf/runtime/register.h"

namespace smddp_tf {

void RegisterBroadcast() {
  RegisterAsync<SameShapesCall<SMDDP_BROADCAST>, CreateAttributes<kHasType | kHasRoot | kHasList>,
                DestroyAttributes>(
      {"SmddpBroadcast",
       {"tensors: N * T"},
       {"outputs: N * T"},
       {kTypeAttr, "N: int >= 1", "root_rank: int", kNameAttr, kSetAttr, kMatchingAttr},
       true,
       SameShapes});
}

}  // namespace smddp_tf
