#include "capi/smddp.h"
#include "tf/kernels/same_shapes_call.h"
#include "tf/runtime/register.h"

namespace smddp_tf {

void RegisterBroadcast() {
  constexpr unsigned kAttrs = kHasType | kHasRoot | kHasList | kHasDescription;
  RegisterCollective<SameShapesCall<SMDDP_BROADCAST>, CreateAttributes<kAttrs>, DestroyAttributes>(
      "Broadcast", {{"tensors: N * T"},
                    {"outputs: N * T"},
                    {kTypeAttr, "N: int >= 1", "root_rank: int", kDescriptionAttr},
                    SameShapes});
}

}  // namespace smddp_tf
