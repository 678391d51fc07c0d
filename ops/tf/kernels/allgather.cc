#include "capi/smddp.h"
#include "tf/kernels/ragged_call.h"
#include "tf/runtime/register.h"

namespace smddp_tf {
namespace {

class AllgatherCall : public RaggedCall {
  void Start() override { PostRagged(SMDDP_ALLGATHER, nullptr, 0); }
};

}  // namespace

void RegisterAllgather() {
  RegisterAsync<AllgatherCall, CreateAttributes<kHasType>, DestroyAttributes>(
      {"SmddpAllgather",
       {"tensor: T"},
       {"output: T"},
       {kTypeAttr, kNameAttr, kSetAttr, kMatchingAttr},
       true,
       UnknownShape});
}

}  // namespace smddp_tf
