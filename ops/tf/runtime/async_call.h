// AsyncCall: one execution of an op, from its compute function to its completion callback.
//
// All ops that wait for peers are asynchronous: a thread of TensorFlow's pool waits for a
// millisecond at most (RankSet::Post in engine/rank_set.h) and is then released. Otherwise all
// threads could block in collectives that the other ranks run later, and those running there could
// never start.
#pragma once

#include <functional>
#include <string>

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
  // Does the work. Its last statement must call Fail, Finish or Post: the call may be deleted by
  // then.
  virtual void Start() = 0;

  void Fail(int code, const std::string& message);
  // Completes the call, on success or after a failure that was already reported to TensorFlow.
  void Finish();
  // Runs the collective, and then `next` if it succeeded.
  void Post(smddp_request request, std::function<void()> next);
  // Gives the request of a loop's iteration a name of its own, which `name` holds: iterations may
  // overlap, so their order of arrival does not identify them. In nested loops those of the outer
  // one overlap too; the number of the inner one's frame, a hash of the names and iterations of the
  // loops around it, tells them apart and is the same on all ranks.
  void NumberIteration(smddp_request* request, std::string* name) const;

  const Attributes& attributes() const { return *static_cast<const Attributes*>(kernel_); }
  const void* kernel_ = nullptr;
  TF_OpKernelContext* context_ = nullptr;

  // For Post and the C API.
  static void Done(void* call, int code, const char* message);
  std::function<void()> next_;

 private:
  struct Latch;
  AsyncDone done_;
  Latch* latch_ = nullptr;  // used instead of done_ where the compute function has to block
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

}  // namespace smddp_tf
