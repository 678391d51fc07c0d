#include "capi/smddp.h"
#include "tf/runtime/op_call.h"
#include "tf/runtime/register.h"

namespace smddp_tf {
namespace {

class BarrierCall : public OpCall {
  void Start() override {
    Post(MakeRequest(SMDDP_BARRIER, attributes(), {}), [this] { Finish(); });
  }
};

}  // namespace

void RegisterBarrier() {
  RegisterCollective<BarrierCall, CreateAttributes<0>, DestroyAttributes>("Barrier",
                                                                          {{}, {}, {}, NoOutputs});
}

}  // namespace smddp_tf
