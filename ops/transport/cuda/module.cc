#include "transport/cuda/module.h"

namespace smddp {

Status CudaModule::Load(const void* image, const std::vector<const char*>& names) {
  CudaDevice::Current current(device_);
  if (!current.status().ok()) return current.status();
  const CudaDriver& driver = device_->driver();
  void* module = nullptr;
  CudaResult result = driver.ModuleLoadData(&module, image);
  if (result != kCudaSuccess) return driver.Failure("cuModuleLoadData", result);
  // Here, and not at the first launch, since loading a function may wait for the GPU.
  for (const char* name : names) {
    void* function = nullptr;
    result = driver.ModuleGetFunction(&function, module, name);
    if (result != kCudaSuccess) return driver.Failure("cuModuleGetFunction", result);
    functions_.push_back(function);
  }
  return {};
}

Status CudaModule::Launch(size_t kernel, unsigned blocks, unsigned threads, void* parameter,
                          void* stream) const {
  if (blocks == 0) return {};
  CudaDevice::Current current(device_);
  if (!current.status().ok()) return current.status();
  const CudaDriver& driver = device_->driver();
  void* parameters[] = {parameter};
  CudaResult result = driver.LaunchKernel(functions_[kernel], blocks, 1, 1, threads, 1, 1, 0,
                                          stream, parameters, nullptr);
  return result == kCudaSuccess ? Status() : driver.Failure("cuLaunchKernel", result);
}

}  // namespace smddp
