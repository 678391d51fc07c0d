// A call of an op, from its compute function to the callback that completes it.
//
// All ops that wait for peers are asynchronous: a thread of TensorFlow's pool waits a millisecond
// at most (engine/rank_set.h, Post), then it goes on. If all of them waited, in collectives that
// the other ranks run later, those other collectives could never begin.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tf/runtime/async_done.h"
#include "tf/runtime/op_kernel.h"

namespace smddp_tf {

class AsyncCall {
 public:
  AsyncCall() = default;
  virtual ~AsyncCall() = default;
  AsyncCall(const AsyncCall&) = delete;
  AsyncCall& operator=(const AsyncCall&) = delete;

  // Runs the call, which deletes itself.
  void Run(const void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done);

 protected:
  // Does the work, and calls one of Fail, Finish and Post last: the call may be gone after them.
  virtual void Start() = 0;

  void Fail(int code, const std::string& message);
  // After a failure that TensorFlow knows of already, or success.
  void Finish();
  // Runs the collective; then `next`, if it succeeded.
  void Post(const smddp_request& request, std::function<void()> next);
  // Gathers `own` from the `size` ranks of the set, then calls next(all): row r is rank r's, or
  // zeros if it has joined. `what` is for messages.
  using Rows = std::vector<std::vector<int64_t>>;
  void GatherNumbers(const char* what, const std::vector<int64_t>& own, size_t size,
                     std::function<void(const Rows&)> next);

  const Attributes& attributes() const { return *static_cast<const Attributes*>(kernel_); }
  const void* kernel_ = nullptr;
  TF_OpKernelContext* context_ = nullptr;

  // For Post and the C API.
  static void Done(void* call, int code, const char* message);
  std::function<void()> next_;

 private:
  struct Latch;
  AsyncDone done_;
  Latch* latch_ = nullptr;  // instead of done_, where the compute function waits
};

// The compute function of a kernel.
template <typename Call>
void ComputeCall(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  (new Call())->Run(kernel, context, done);
}

// Registers an op that waits for peers, and its kernel.
template <typename Call, void* (*kCreate)(TF_OpKernelConstruction*), void (*kDestroy)(void*)>
void RegisterAsync(const OpSpec& spec) {
  RegisterOp(spec);
  RegisterKernel(spec.name, TF_NewAsyncKernelBuilder(spec.name.c_str(), "CPU", kCreate,
                                                     ComputeCall<Call>, kDestroy));
}

// The ranks of the attributes' process set, in the job. One rank that is none if there is no such
// set: nothing can be exchanged then, and smddp_post says why.
std::vector<int32_t> RanksOf(const Attributes& attributes);

}  // namespace smddp_tf
