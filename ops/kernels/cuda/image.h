// The kernels of pack.cu as this library has them: compiled when it was built, if there was a
// compiler (SMDDP_CUDA, ops/cmake/cuda.cmake).
#pragma once

namespace smddp {

// Code for several GPUs and, for those that come later, PTX: a bundle (bundle.h) of NVRTC's, or a
// fat binary of nvcc's. Null if the library has none.
const void* PackImage();

// For bug reports: "sm_80 sm_90 and compute_80, by NVRTC 12.9"; or "none: " and why.
const char* ImageText();

}  // namespace smddp
