#include "tf/runtime/async_call.h"

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <utility>  // for move

namespace smddp_tf {

struct AsyncCall::Latch {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
};

void AsyncCall::Run(const void* kernel, TF_OpKernelContext* context,
                    TF_AsyncOpKernelDoneCallback* done) {
  kernel_ = kernel;
  context_ = context;
  if (done_.Take(done)) return Start();
  Latch latch;
  latch_ = &latch;
  Start();
  std::unique_lock<std::mutex> lock(latch.mutex);
  latch.changed.wait(lock, [&] { return latch.open; });
  lock.unlock();
  TF_RunAsyncOpKernelDoneCallback(done);
}

void AsyncCall::Fail(int code, const std::string& message) {
  FailOp(context_, code, message.c_str());
  Finish();
}

void AsyncCall::Finish() {
  // The call's tensors must be released before TensorFlow is notified, because it may end the step.
  AsyncDone done = std::move(done_);
  Latch* latch = latch_;
  delete this;
  if (latch == nullptr) return done.Run();
  std::lock_guard<std::mutex> lock(latch->mutex);
  latch->open = true;
  latch->changed.notify_one();
}

void AsyncCall::Done(void* argument, int code, const char* message) {
  auto* call = static_cast<AsyncCall*>(argument);
  if (code != SMDDP_OK) return call->Fail(code, message);
  std::function<void()> next = std::move(call->next_);
  next();
}

void AsyncCall::Post(smddp_request request, std::function<void()> next) {
  next_ = std::move(next);
  std::string name;
  NumberIteration(&request, &name);
  smddp_post(&request, Done, this);
}

void AsyncCall::NumberIteration(smddp_request* request, std::string* name) const {
  uint64_t loop = request->matching == SMDDP_BY_NAME ? TF_GetFrameId(context_) : 0;
  if (loop == 0) return;
  char iteration[64];
  std::snprintf(iteration, sizeof iteration, " (iteration %lld of loop %llx)",
                static_cast<long long>(TF_GetIterId(context_)),
                static_cast<unsigned long long>(loop));
  *name = request->name + std::string(iteration);
  request->name = name->c_str();
}

}  // namespace smddp_tf
