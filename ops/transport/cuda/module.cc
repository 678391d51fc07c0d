#include "transport/cuda/module.h"

#include "kernels/cuda/bundle.h"

namespace smddp {

Status CudaModule::Load(const void* image, const std::vector<const char*>& names) {
  CudaDevice::Current current(device_);
  if (!current.status().ok()) return current.status();
  const CudaDriver& driver = device_->driver();
  uint32_t capability = 0;
  Status status = device_->Capability(&capability);
  if (!status.ok()) return status;
  std::vector<const void*> codes = CodeFor(image, capability);
  if (codes.empty()) {
    return {Code::kSystem, "there is no code for its compute capability, " +
                               std::to_string(capability / 10) + "." +
                               std::to_string(capability % 10)};
  }
  void* module = nullptr;
  CudaResult loaded = driver.ModuleLoadData(&module, codes[0]);
  status = driver.Failure("cuModuleLoadData", loaded);  // if none of the others loads either
  for (size_t i = 1; i < codes.size() && loaded != kCudaSuccess; ++i) {
    loaded = driver.ModuleLoadData(&module, codes[i]);
  }
  if (loaded != kCudaSuccess) return status;
  // Here, and not at the first launch, since loading a function may wait for the GPU.
  for (const char* name : names) {
    void* function = nullptr;
    CudaResult result = driver.ModuleGetFunction(&function, module, name);
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
