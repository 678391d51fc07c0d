// CudaModule: the kernels of an image (kernels/cuda/image.h) on one GPU.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>  // for pair
#include <vector>

#include "transport/cuda/cuda_device.h"

namespace smddp {

class CudaModule {
 public:
  explicit CudaModule(const CudaDevice* device) : device_(device) {}

  // Kernels have numbers: their places in `names`.
  Status Load(const void* image, const std::vector<const char*>& names);
  // Enqueues a kernel, whose one parameter is at `parameter`. None is launched without blocks.
  Status Launch(size_t kernel, unsigned blocks, unsigned threads, void* parameter,
                void* stream) const;
  const CudaDevice* device() const { return device_; }

 private:
  const CudaDevice* const device_;
  std::vector<void*> functions_;
};

// The Kernels of `image` (null: none) on a GPU: a class made of a CudaModule, with a function
// Names(). Loaded at the first call for that GPU. They stay loaded, as their device does. Null,
// with the reason in *why, if the GPU cannot run them.
template <typename Kernels>
const Kernels* FindKernels(const CudaDevice* device, const void* image, std::string* why) {
  struct Loaded {
    std::unique_ptr<Kernels> kernels;
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
    CudaModule module(device);
    Status status = module.Load(image, Kernels::Names());
    loaded.kernels = std::make_unique<Kernels>(std::move(module));
    if (!status.ok()) {
      loaded.problem = "the kernels of smddp_tf do not load on this GPU: " + status.message();
    }
  }
  *why = loaded.problem;
  return loaded.problem.empty() ? loaded.kernels.get() : nullptr;
}

}  // namespace smddp
