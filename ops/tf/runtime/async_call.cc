#include "tf/runtime/async_call.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>  // for move

namespace smddp_tf {
namespace {

constexpr int kByName = 2;  // smddp_request::matching

}  // namespace

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

void AsyncCall::Post(const smddp_request& request, std::function<void()> next) {
  next_ = std::move(next);
  uint64_t loop = request.matching == kByName ? TF_GetFrameId(context_) : 0;
  if (loop == 0) return smddp_post(&request, Done, this);
  // Iterations of a loop may overlap, so their order of arrival does not identify them. Frames of
  // nested loops do: their number is a hash of the names and iterations of the loops around them.
  char iteration[64];
  std::snprintf(iteration, sizeof iteration, " (iteration %lld of loop %llx)",
                static_cast<long long>(TF_GetIterId(context_)),
                static_cast<unsigned long long>(loop));
  std::string name = request.name + std::string(iteration);
  smddp_request named = request;
  named.name = name.c_str();
  smddp_post(&named, Done, this);
}

void AsyncCall::GatherNumbers(const char* what, const std::vector<int64_t>& own, size_t size,
                              std::function<void(const Rows&)> next) {
  Attributes named = attributes();
  if (*what != '\0') named.name += std::string(" (") + what + ")";
  // Both buffers must live until the collective is done; `next` holds them.
  auto sent = std::make_shared<std::vector<int64_t>>(own);
  auto flat = std::make_shared<std::vector<int64_t>>(own.size() * size);
  int64_t bytes = static_cast<int64_t>(own.size() * sizeof(int64_t));
  std::vector<int64_t> parts(size, bytes);
  smddp_tensor tensor{sent->data(), flat->data(), 1, &bytes};
  smddp_request request = MakeRequest(SMDDP_ALLGATHER, named, {});
  request.dtype = kTfInt64;
  request.root = SMDDP_NUMBERS;  // lets a joined rank take part
  request.num_tensors = 1;
  request.tensors = &tensor;
  request.part_bytes = parts.data();
  Post(request, [sent, flat, size, next = std::move(next)] {
    Rows rows;
    size_t width = sent->size();
    for (size_t r = 0; r < size; ++r) {
      rows.emplace_back(flat->begin() + r * width, flat->begin() + (r + 1) * width);
    }
    next(rows);
  });
}

std::vector<int32_t> RanksOf(const Attributes& attributes) {
  int set = static_cast<int>(attributes.process_set);
  int size = std::max(1, smddp_process_set_ranks(set, nullptr, 0));
  std::vector<int32_t> ranks(static_cast<size_t>(size));
  smddp_process_set_ranks(set, ranks.data(), size);
  return ranks;
}

}  // namespace smddp_tf
