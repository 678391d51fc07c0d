#include "transport/cuda/driver.h"

#include <dlfcn.h>

namespace smddp {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

// The problem, or "".
std::string Load(CudaDriver* driver) {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return dlerror();
  std::string missing;
  auto find = [&](auto* function, const char* name) {
    *reinterpret_cast<void**>(function) = dlsym(library, name);
    if (*function == nullptr && missing.empty()) missing = name;
  };
  // The numbers are those of the ABI since CUDA 4 and belong to what the headers call by the name
  // without one.
  find(&driver->Init, "cuInit");
  find(&driver->GetErrorString, "cuGetErrorString");
  find(&driver->PointerGetAttribute, "cuPointerGetAttribute");
  find(&driver->DeviceGet, "cuDeviceGet");
  find(&driver->DeviceGetAttribute, "cuDeviceGetAttribute");
  find(&driver->DeviceGetUuid, "cuDeviceGetUuid");
  find(&driver->DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  find(&driver->CtxPushCurrent, "cuCtxPushCurrent_v2");
  find(&driver->CtxPopCurrent, "cuCtxPopCurrent_v2");
  find(&driver->CtxGetDevice, "cuCtxGetDevice");
  find(&driver->CtxSynchronize, "cuCtxSynchronize");
  find(&driver->StreamCreate, "cuStreamCreate");
  find(&driver->StreamGetCtx, "cuStreamGetCtx");
  find(&driver->StreamSynchronize, "cuStreamSynchronize");
  find(&driver->StreamWaitEvent, "cuStreamWaitEvent");
  find(&driver->EventCreate, "cuEventCreate");
  find(&driver->EventRecord, "cuEventRecord");
  find(&driver->EventSynchronize, "cuEventSynchronize");
  find(&driver->EventQuery, "cuEventQuery");
  find(&driver->EventDestroy, "cuEventDestroy_v2");
  find(&driver->MemHostAlloc, "cuMemHostAlloc");
  find(&driver->MemFreeHost, "cuMemFreeHost");
  find(&driver->MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2");
  find(&driver->MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2");
  find(&driver->MemAlloc, "cuMemAlloc_v2");
  find(&driver->MemFree, "cuMemFree_v2");
  find(&driver->ModuleLoadData, "cuModuleLoadData");
  find(&driver->ModuleGetFunction, "cuModuleGetFunction");
  find(&driver->LaunchKernel, "cuLaunchKernel");
  if (!missing.empty()) return std::string(kLibrary) + " has no " + missing;
  // Tells the instances of a partitioned GPU apart, which the older function does not.
  if (void* newer = dlsym(library, "cuDeviceGetUuid_v2")) {
    *reinterpret_cast<void**>(&driver->DeviceGetUuid) = newer;
  }
  CudaResult result = driver->Init(0);
  return result == kCudaSuccess ? "" : driver->Failure("cuInit", result).message();
}

}  // namespace

const CudaDriver* CudaDriver::Open(std::string* why) {
  static CudaDriver driver;
  static const auto& problem = *new std::string(Load(&driver));  // outlives every thread
  if (problem.empty()) return &driver;
  *why = problem;
  return nullptr;
}

Status CudaDriver::Failure(const char* function, CudaResult result) const {
  const char* text = nullptr;
  if (GetErrorString(result, &text) != kCudaSuccess || text == nullptr) text = "unknown error";
  return {Code::kSystem, std::string("CUDA: ") + text + " (" + function + ", error " +
                             std::to_string(result) + ")"};
}

}  // namespace smddp
