// How an asynchronous kernel says that it is done, after its compute function has returned.
//
// TensorFlow hands such a kernel a pointer to its callback. From 2.22 on the callback is kept until
// the kernel runs it. Up to 2.21 it lives on the stack of the caller, so it must be copied before
// the compute function returns; the C API has no call for that, so it must be known to be
// libstdc++'s std::function, as which all builds from 2.15 to 2.21 declare it. Where neither holds,
// the compute function must wait.
#pragma once

#include <functional>

#include "tf/runtime/tf_c_api.h"

namespace smddp_tf {

class AsyncDone {
 public:
  // Makes the callback last. False: it must be run before the compute function returns.
  bool Take(TF_AsyncOpKernelDoneCallback* done);
  // Once, after Take() was true.
  void Run();

 private:
  std::function<void()> copy_;
  TF_AsyncOpKernelDoneCallback* kept_ = nullptr;
};

}  // namespace smddp_tf
