#include "tf/runtime/op_call.h"

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <utility>  // for move

#include "tf/runtime/gpu_stream.h"

namespace smddp_tf {

struct OpCall::Latch {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
};

void OpCall::Run(const void* kernel, TF_OpKernelContext* context,
                 TF_AsyncOpKernelDoneCallback* done) {
  if (!done_.Take(done)) {
    RunBlocking(kernel, context);
    return TF_RunAsyncOpKernelDoneCallback(done);
  }
  kernel_ = kernel;
  context_ = context;
  Guard([this] { Start(); });
}

void OpCall::RunBlocking(const void* kernel, TF_OpKernelContext* context) {
  kernel_ = kernel;
  context_ = context;
  Latch latch;
  latch_ = &latch;
  Guard([this] { Start(); });
  std::unique_lock<std::mutex> lock(latch.mutex);
  latch.changed.wait(lock, [&] { return latch.open; });
}

void OpCall::Fail(int code, const std::string& message) {
  FailOp(context_, code, message.c_str());
  Finish();
}

void OpCall::Finish() noexcept {
  // The call's tensors must be released before TensorFlow is notified, because it may end the step.
  AsyncDone done = std::move(done_);
  Latch* latch = latch_;
  delete this;
  if (latch == nullptr) return done.Run();
  std::lock_guard<std::mutex> lock(latch->mutex);
  latch->open = true;
  latch->changed.notify_one();
}

void OpCall::Done(void* argument, int code, const char* message) {
  auto* call = static_cast<OpCall*>(argument);
  if (code != SMDDP_OK) return call->Fail(code, message);
  std::function<void()> next = std::move(call->next_);
  call->Guard(next);
}

void OpCall::Post(smddp_request request, std::function<void()> next) {
  next_ = std::move(next);
  std::string name;
  if (!NumberRun(&request, &name)) return Finish();
  Place(&request);
  if (latch_ == nullptr) return smddp_post(&request, Done, this);
  int code = smddp_run(&request);
  Done(this, code, code == SMDDP_OK ? "" : smddp_last_error());
}

void OpCall::Place(smddp_request* request) const {
  request->memory = memory_;
  if (memory_ == SMDDP_CUDA) request->stream = GpuStreamOf(context_);
}

// Calls of a function and iterations of a loop overlap in a session, so their order of arrival does
// not tell them apart. What does is the same on all ranks: the number of the call, counted when the
// graph was built (smddp_tf/_src/graph/calls.py), and for a loop the iteration and the number of
// its frame, which is a hash of the names and iterations of the loops around it.
bool OpCall::NumberRun(smddp_request* request, std::string* name) const {
  if (request->matching != SMDDP_BY_NAME) return true;
  int64_t number = 0;
  if (!ReadScalar(context_, TF_NumInputs(context_) - 1, &number)) return false;
  *name = request->name;
  if (number != 0) *name += NameOfCall(number);
  if (uint64_t loop = TF_GetFrameId(context_); loop != 0) {
    char iteration[64];
    std::snprintf(iteration, sizeof iteration, " (iteration %lld of loop %llx)",
                  static_cast<long long>(TF_GetIterId(context_)),
                  static_cast<unsigned long long>(loop));
    *name += iteration;
  }
  request->name = name->c_str();
  return true;
}

}  // namespace smddp_tf
