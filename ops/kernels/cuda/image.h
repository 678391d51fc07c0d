// The kernels of pack.cu and compress.cu as this library has them: compiled when it was built, if
// nvcc was there (SMDDP_CUDA, ops/cmake/cuda.cmake).
#pragma once

namespace smddp {

// "Fat binaries" for cuModuleLoadData: code for several GPUs and, for those that come later, PTX.
// Null if the library has none.
const void* PackImage();
const void* CompressImage();

// For bug reports: "sm_80 sm_90 and compute_80, by nvcc 12.9.86"; or "none: " and why.
const char* ImageText();

}  // namespace smddp
