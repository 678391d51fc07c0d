// AsyncDone: completes an asynchronous kernel after its compute function has returned.
//
// TensorFlow passes such a kernel a pointer to its callback. From 2.22 on, the callback lives until
// the kernel runs it. Up to 2.21 it lives on the caller's stack, so it must be copied before the
// compute function returns. The C API has no function for that, so it is copied as libstdc++'s
// std::function, which is how all builds from 2.15 to 2.21 declare it. Where neither applies, the
// compute function must block.
#pragma once

#include "tf/runtime/gnu_abi.h"
#include "tf/runtime/tf_c_api.h"

namespace smddp_tf {

class AsyncDone {
 public:
  // Makes the callback outlive the compute function. If it returns false, the callback must be run
  // before the compute function returns.
  bool Take(TF_AsyncOpKernelDoneCallback* done);
  // Call it once, and only if Take() returned true.
  void Run();

 private:
  GnuFunction copy_;
  TF_AsyncOpKernelDoneCallback* kept_ = nullptr;
};

}  // namespace smddp_tf
