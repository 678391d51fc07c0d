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
  constexpr unsigned kAttrs = kHasType | kHasDescription;
  RegisterCollective<AllgatherCall, CreateAttributes<kAttrs>, DestroyAttributes>(
      "Allgather", {{"tensor: T"}, {"output: T"}, {kTypeAttr, kDescriptionAttr}, UnknownShape});
}

}  // namespace smddp_tf
