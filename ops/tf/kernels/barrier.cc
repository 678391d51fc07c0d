#include "capi/smddp.h"
#include "tf/runtime/async_call.h"
#include "tf/runtime/register.h"

namespace smddp_tf {
namespace {

class BarrierCall : public AsyncCall {
  void Start() override {
    Post(MakeRequest(SMDDP_BARRIER, attributes(), {}), [this] { Finish(); });
  }
};

}  // namespace

void RegisterBarrier() {
  RegisterAsync<BarrierCall, CreateAttributes<0>, DestroyAttributes>(
      {"SmddpBarrier", {}, {}, {kNameAttr, kSetAttr, kMatchingAttr}, true, NoOutputs});
}

}  // namespace smddp_tf
