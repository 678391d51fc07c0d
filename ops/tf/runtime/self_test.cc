// An op that completes asynchronously like the collectives, but without peers:
// smddp_tf/_src/graph/library.py runs it once.
#include <chrono>
#include <thread>

#include "core/detached_thread.h"
#include "tf/runtime/op_call.h"
#include "tf/runtime/register.h"

namespace smddp_tf {
namespace {

void* CreateSelfTest(TF_OpKernelConstruction*) { return nullptr; }
void DestroySelfTest(void*) {}

// y = x + 1, computed later on another thread, after the caller's stack has changed.
class SelfTestCall : public OpCall {
  void Start() override {
    auto later = [this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      Increment();
      Finish();
    };
    smddp::RunDetached(later, [this](const smddp::Status& thrown) {
      Fail(static_cast<int>(thrown.code()), thrown.message());
    });
  }

  void Increment() {
    ScopedStatus status;
    Input in(context_, 0);
    if (in.Failed(context_)) return;
    TF_Tensor* out = TF_AllocateOutput(context_, 0, SMDDP_INT64, nullptr, 0, 8, status);
    if (!status.ok()) return TF_OpKernelContext_Failure(context_, status);
    *static_cast<int64_t*>(TF_TensorData(out)) =
        *static_cast<int64_t*>(TF_TensorData(in.get())) + 1;
    TF_DeleteTensor(out);
  }
};

}  // namespace

void RegisterSelfTest() {
  RegisterAsync<SelfTestCall, CreateSelfTest, DestroySelfTest>(
      {"SmddpSelfTest", {"x: int64"}, {"y: int64"}, {}, false, ScalarShape});
}

}  // namespace smddp_tf
