// Ops that wait, in two kinds: of all ranks, and of process sets.
//
// The first are synchronous: they hold a thread of TensorFlow's pool, which cannot deadlock, since
// every rank runs them in the same order. Ops of a process set may run in any order to those of
// other sets, so all of a pool's threads could wait in sets whose other ranks wait elsewhere. They
// are asynchronous, and wait on threads of our own.
#pragma once

#include <functional>

#include "tf/blocking.h"
#include "tf/op_kernel.h"

namespace smddp_tf {

template <void (*kCompute)(void*, TF_OpKernelContext*)>
void ComputeOnSet(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  // A std::function on the caller's stack, as in plan_ops.cc.
  auto finish = *reinterpret_cast<std::function<void()>*>(done);
  RunBlocking([=]() mutable {
    kCompute(kernel, context);
    TF_RunAsyncOpKernelDoneCallback(reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(&finish));
  });
}

// Registers the op and, with "OnSet" behind its name, the same for process sets but the global one.
template <void* (*kCreate)(TF_OpKernelConstruction*), void (*kCompute)(void*, TF_OpKernelContext*),
          void (*kDestroy)(void*)>
void Register(OpSpec spec) {
  RegisterOp(spec);
  RegisterKernel(spec.name,
                 TF_NewKernelBuilder(spec.name.c_str(), "CPU", kCreate, kCompute, kDestroy));
  spec.name += "OnSet";
  RegisterOp(spec);
  RegisterKernel(spec.name, TF_NewAsyncKernelBuilder(spec.name.c_str(), "CPU", kCreate,
                                                     ComputeOnSet<kCompute>, kDestroy));
}

}  // namespace smddp_tf
