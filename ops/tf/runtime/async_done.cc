#include "tf/runtime/async_done.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "capi/smddp.h"

namespace smddp_tf {
namespace {

// smddp_tf/_src/graph/library.py uses the same values.
enum Handover : int { kUndecided, kKept, kCopied, kBlocking };

std::atomic<int> handover{kUndecided};

// Mangled names of ComputeAsync() of devices and kernels, without the type of the callback.
constexpr const char* kComputeAsync[] = {
    "_ZN10tensorflow6Device12ComputeAsyncEPNS_13AsyncOpKernelEPNS_15OpKernelContextE",
    "_ZN10tensorflow16ThreadPoolDevice12ComputeAsyncEPNS_13AsyncOpKernelEPNS_15OpKernelContextE",
    "_ZN10tensorflow6CallOp12ComputeAsyncEPNS_15OpKernelContextE",
};
constexpr const char* kStdFunction = "St8functionIFvvEE";  // libstdc++'s; libc++'s contains NSt3

// False also if the stack's address cannot be determined.
bool OutsideStack(const void* pointer) {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return false;
  void* lowest = nullptr;
  size_t size = 0;
  int code = pthread_attr_getstack(&attributes, &lowest, &size);
  pthread_attr_destroy(&attributes);
  auto offset = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(lowest);
  return code == 0 && offset >= size;
}

bool TakesStdFunction(const char* library) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return false;
  bool found = false;
  for (const char* name : kComputeAsync) {
    found |= dlsym(handle, (std::string(name) + kStdFunction).c_str()) != nullptr;
  }
  dlclose(handle);
  return found;
}

void Block(const char* why) {
  if (handover.exchange(kBlocking) == kBlocking) return;
  std::string text = std::string("TensorFlow's operations cannot be completed later (") + why +
                     "), so each collective holds one of its threads while it waits. Set "
                     "tf.config.threading.set_inter_op_parallelism_threads() to more than the "
                     "collectives that may "
                     "wait at once, in threads and sessions";
  smddp_warn(text.c_str());
}

// The answer holds for every callback of the process: one function of TensorFlow makes them all.
int Decide(const void* callback) {
  int decided = OutsideStack(callback)                             ? kKept
                : TakesStdFunction("libtensorflow_framework.so.2") ? kCopied
                                                                   : kBlocking;
  if (decided == kBlocking) {
    Block("its completion callback is of a type that is not known here");
    return kBlocking;
  }
  int undecided = kUndecided;
  handover.compare_exchange_strong(undecided, decided);
  return handover;
}

}  // namespace

bool AsyncDone::Take(TF_AsyncOpKernelDoneCallback* done) {
  int how = handover.load(std::memory_order_relaxed);
  if (how == kUndecided) how = Decide(done);
  if (how == kCopied) copy_.CopyFrom(done);
  if (how == kKept) kept_ = done;
  return how != kBlocking;
}

void AsyncDone::Run() {
  TF_RunAsyncOpKernelDoneCallback(
      kept_ != nullptr ? kept_ : reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(&copy_));
}

}  // namespace smddp_tf

extern "C" {

// How operations complete: 0 undecided, 1 TensorFlow keeps the callback, 2 it is copied, 3 they
// block.
SMDDP_EXPORT int smddp_handover(void) { return smddp_tf::handover; }

// Makes operations block from now on, and logs why.
SMDDP_EXPORT void smddp_block_ops(const char* why) { smddp_tf::Block(why); }

// For tests: whether a loaded library declares the callback as std::function, and whether a pointer
// is outside the calling thread's stack.
SMDDP_EXPORT int smddp_takes_std_function(const char* library) {
  return smddp_tf::TakesStdFunction(library);
}
SMDDP_EXPORT int smddp_outside_stack(const void* pointer) {
  char local = 0;
  return smddp_tf::OutsideStack(pointer == nullptr ? &local : pointer);
}

}  // extern "C"
