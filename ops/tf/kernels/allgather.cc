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
  RegisterCollective<AllgatherCall, CreateAttributes<kHasType>, DestroyAttributes>(
      "Allgather", {{"tensor: T"}, {"output: T"}, {kTypeAttr}, UnknownShape});
}

}  // namespace smddp_tf
