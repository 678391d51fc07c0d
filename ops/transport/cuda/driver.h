// The functions of CUDA's driver API that are used here, declared by hand and found at run time, so
// neither building nor importing the library needs CUDA. NVIDIA documents them in "CUDA Driver
// API".
#pragma once

#include <cstddef>
#include <string>

#include "core/status.h"

namespace smddp {

// CUresult, CUdevice and the flags are plain integers in the ABI, and the handles are pointers.
using CudaResult = int;
inline constexpr CudaResult kCudaSuccess = 0;
inline constexpr CudaResult kCudaNotReady = 600;
inline constexpr size_t kCudaUuidBytes = 16;

inline constexpr int kCudaPointerDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
inline constexpr int kCudaCapabilityMajor = 75, kCudaCapabilityMinor = 76;
inline constexpr unsigned kCudaStreamNonBlocking = 1;
inline constexpr unsigned kCudaEventBlockingSync = 1, kCudaEventDisableTiming = 2;
inline constexpr unsigned kCudaHostAllocPortable = 1;

struct CudaDriver {
  CudaResult (*Init)(unsigned flags);
  CudaResult (*GetErrorString)(CudaResult error, const char** text);
  CudaResult (*PointerGetAttribute)(void* value, int attribute, const void* address);
  CudaResult (*DeviceGet)(int* device, int ordinal);
  CudaResult (*DeviceGetAttribute)(int* value, int attribute, int device);
  CudaResult (*DeviceGetUuid)(void* uuid, int device);
  CudaResult (*DevicePrimaryCtxRetain)(void** context, int device);
  CudaResult (*CtxPushCurrent)(void* context);
  CudaResult (*CtxPopCurrent)(void** context);
  CudaResult (*CtxGetDevice)(int* device);
  CudaResult (*CtxSynchronize)();
  CudaResult (*StreamCreate)(void** stream, unsigned flags);
  CudaResult (*StreamGetCtx)(void* stream, void** context);
  CudaResult (*StreamSynchronize)(void* stream);
  CudaResult (*StreamWaitEvent)(void* stream, void* event, unsigned flags);
  CudaResult (*EventCreate)(void** event, unsigned flags);
  CudaResult (*EventRecord)(void* event, void* stream);
  CudaResult (*EventSynchronize)(void* event);
  CudaResult (*EventQuery)(void* event);
  CudaResult (*EventDestroy)(void* event);
  CudaResult (*MemHostAlloc)(void** memory, size_t bytes, unsigned flags);
  CudaResult (*MemFreeHost)(void* memory);
  CudaResult (*MemcpyDtoHAsync)(void* to, const void* from, size_t bytes, void* stream);
  CudaResult (*MemcpyHtoDAsync)(void* to, const void* from, size_t bytes, void* stream);

  CudaResult (*MemAlloc)(void** memory, size_t bytes);  // of the current context's device
  CudaResult (*MemFree)(void* memory);
  CudaResult (*ModuleLoadData)(void** module, const void* image);
  CudaResult (*ModuleGetFunction)(void** function, void* module, const char* name);
  CudaResult (*LaunchKernel)(void* function, unsigned blocks_x, unsigned blocks_y,
                             unsigned blocks_z, unsigned threads_x, unsigned threads_y,
                             unsigned threads_z, unsigned shared_bytes, void* stream,
                             void** parameters, void** extra);

  // Opens libcuda.so.1 once. Returns null and sets *why if the machine has none that works.
  static const CudaDriver* Open(std::string* why);
  // The error of a call to `function`.
  Status Failure(const char* function, CudaResult result) const;
};

}  // namespace smddp
