// Registration of the ops, one function per file; called when TensorFlow loads the library.
#pragma once

#include <cstddef>

#include "core/dtype.h"

namespace smddp_tf {

void RegisterAllreduce();
void RegisterBroadcast();
void RegisterAllgather();
void RegisterAlltoall();
void RegisterReducescatter();
void RegisterBarrier();
void RegisterJoin();
void RegisterPlanOps();
void RegisterIteration();
void RegisterQueryOps();
void RegisterSelfTest();
void RegisterInt8Ops();
void RegisterTopkOps();

inline size_t SizeOf(int dtype) {
  const smddp::DTypeInfo* info = smddp::FindDType(dtype);
  return info == nullptr ? 0 : info->size;
}

}  // namespace smddp_tf
