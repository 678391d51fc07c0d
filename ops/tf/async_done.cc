#include "tf/async_done.h"

#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "tf/op_kernel.h"
#include "tf/register.h"

extern "C" SMDDP_EXPORT const char* smddp_callback_problem(const void* callback) {
  // Two words of storage, then the functions that copy and that call what is stored.
  struct {
    void *storage[2], *manager, *invoker;
  } layout;
  static_assert(sizeof layout == sizeof(smddp_tf::AsyncDone));
  std::memcpy(&layout, callback, sizeof layout);
  Dl_info info;
  if (dladdr(layout.manager, &info) == 0 || dladdr(layout.invoker, &info) == 0) {
    return "its completion callback is not libstdc++'s std::function";
  }
  return "";
}

namespace smddp_tf {
namespace {

void* CreateSelfTest(TF_OpKernelConstruction*) { return nullptr; }
void DestroySelfTest(void*) {}

// Sets output 0 to input 0 plus one.
void Increment(TF_OpKernelContext* context) {
  ScopedStatus status;
  TF_Tensor *in = nullptr, *out = nullptr;
  TF_GetInput(context, 0, &in, status);
  if (status.ok()) out = TF_AllocateOutput(context, 0, kTfInt64, nullptr, 0, 8, status);
  if (status.ok()) {
    *static_cast<int64_t*>(TF_TensorData(out)) = *static_cast<int64_t*>(TF_TensorData(in)) + 1;
  } else {
    TF_OpKernelContext_Failure(context, status);
  }
  if (in != nullptr) TF_DeleteTensor(in);
  if (out != nullptr) TF_DeleteTensor(out);
}

// Like a bucket: its compute function returns at once, and another thread completes it later, when
// the caller's stack has changed.
void ComputeSelfTest(void*, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  const char* problem = smddp_callback_problem(done);
  if (*problem != '\0') {
    FailOp(context, SMDDP_SYSTEM, problem);
    return TF_RunAsyncOpKernelDoneCallback(done);
  }
  std::thread([context, copy = CopyDone(done)]() mutable {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    Increment(context);
    RunDone(&copy);
  }).detach();
}

}  // namespace

void RegisterSelfTest() {
  RegisterOp({"SmddpSelfTest", {"x: int64"}, {"y: int64"}, {}, false, ScalarShape});
  RegisterKernel("SmddpSelfTest", TF_NewAsyncKernelBuilder("SmddpSelfTest", "CPU", CreateSelfTest,
                                                           ComputeSelfTest, DestroySelfTest));
}

}  // namespace smddp_tf
