// How an asynchronous kernel says that it is done, after its compute function has returned.
//
// TensorFlow hands such a kernel the address of a std::function that lives on the stack of the
// caller, so it must be copied before the compute function returns. Its C API has no call for that:
// the copy leans on the layout of libstdc++'s std::function, which all builds of TensorFlow from
// 2.15 to 2.21 have. async_done.cc holds the op with which Python tests it in the process at hand.
#pragma once

#include <functional>

#include "tf/tf_c_api.h"

// Why what is at `callback` (32 bytes) cannot be libstdc++'s std::function; "" if it can be.
extern "C" const char* smddp_callback_problem(const void* callback);

namespace smddp_tf {

using AsyncDone = std::function<void()>;

inline AsyncDone CopyDone(TF_AsyncOpKernelDoneCallback* done) {
  return *reinterpret_cast<AsyncDone*>(done);
}

inline void RunDone(AsyncDone* done) {
  TF_RunAsyncOpKernelDoneCallback(reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(done));
}

}  // namespace smddp_tf
