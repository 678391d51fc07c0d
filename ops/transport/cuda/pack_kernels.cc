#include "transport/cuda/pack_kernels.h"

#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <utility>  // for pair

namespace smddp {
namespace {

struct Named {
  const char *pack, *unpack;
  uint64_t wire_bytes;  // of an element
};
constexpr Named kKernels[] = {
#define SMDDP_NAMED(name, tensor, wire) {"smddp_pack_" #name, "smddp_unpack_" #name, sizeof(wire)},
    SMDDP_PACK_KERNELS(SMDDP_NAMED)
#undef SMDDP_NAMED
};

}  // namespace

const PackKernels* PackKernels::Find(const CudaDevice* device, const void* image,
                                     std::string* why) {
  struct Loaded {
    std::unique_ptr<PackKernels> kernels;
    std::string problem;
  };
  static std::mutex mutex;
  static auto* known = new std::map<std::pair<const CudaDevice*, const void*>, Loaded>();
  if (image == nullptr) {
    *why = "smddp_tf was built without kernels for GPUs";
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(mutex);
  Loaded& loaded = (*known)[{device, image}];
  if (loaded.kernels == nullptr) {
    loaded.kernels.reset(new PackKernels(device));
    Status status = loaded.kernels->Load(image);
    if (!status.ok()) {
      loaded.problem = "the kernels of smddp_tf do not load on this GPU: " + status.message();
    }
  }
  *why = loaded.problem;
  return loaded.problem.empty() ? loaded.kernels.get() : nullptr;
}

Status PackKernels::Load(const void* image) {
  static_assert(std::size(kKernels) == kTypes);
  CudaDevice::Current current(device_);
  if (!current.status().ok()) return current.status();
  const CudaDriver& driver = device_->driver();
  void* module = nullptr;
  CudaResult result = driver.ModuleLoadData(&module, image);
  if (result != kCudaSuccess) return driver.Failure("cuModuleLoadData", result);
  // Here, and not at the first launch, since loading a function may wait for the GPU.
  for (int i = 0; i < kTypes && result == kCudaSuccess; ++i) {
    result = driver.ModuleGetFunction(&pack_[i], module, kKernels[i].pack);
    if (result != kCudaSuccess) break;
    result = driver.ModuleGetFunction(&unpack_[i], module, kKernels[i].unpack);
  }
  return result == kCudaSuccess ? Status() : driver.Failure("cuModuleGetFunction", result);
}

Status PackKernels::Launch(void* function, PackType type, PackArgs args, void* stream) const {
  CudaDevice::Current current(device_);
  if (!current.status().ok()) return current.status();
  uint64_t bytes = (args.end - args.begin) * kKernels[static_cast<int>(type)].wire_bytes;
  void* parameters[] = {&args};
  CudaResult result = device_->driver().LaunchKernel(
      function, PackBlocks(bytes), 1, 1, kPackThreads, 1, 1, 0, stream, parameters, nullptr);
  return result == kCudaSuccess ? Status() : device_->driver().Failure("cuLaunchKernel", result);
}

}  // namespace smddp
