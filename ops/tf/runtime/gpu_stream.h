// GpuStreamOf: the stream in which TensorFlow runs a GPU's kernels.
#pragma once

#include "tf/runtime/tf_c_api.h"

namespace smddp_tf {

// The CUstream of the kernel with that context. Where the loaded TensorFlow does not let it be
// found, SMDDP_EVERY_STREAM, for this kernel and all later ones; the log says so once.
void* GpuStreamOf(TF_OpKernelContext* context);

}  // namespace smddp_tf
