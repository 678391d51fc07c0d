// Modules and launches of the fake driver: kernels are those of kernels.h, and run on a stream's
// thread. A module is taken for ours if it looks like what nvcc makes; any other has no code for
// this device.
#include "kernels.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "memory.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int cuCtxGetCurrent(void** context);

namespace {

enum Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kInvalidContext = 201,
  kNoBinary = 209,
  kNotFound = 500
};

constexpr uint32_t kFatBinary = 0xba55ed50;  // what nvcc's files begin with

char the_module;  // only its address counts

std::mutex mutex;
std::map<std::string, int>& Launches() {
  static auto* launches = new std::map<std::string, int>();
  return *launches;
}

struct Launched {
  const FakeKernel* kernel;
  FakeArgs args;
  unsigned blocks;
};

void Run(void* argument) {
  std::unique_ptr<Launched> launched(static_cast<Launched*>(argument));
  launched->kernel->run(launched->args, launched->blocks);
}

bool HasContext() {
  void* context = nullptr;
  return cuCtxGetCurrent(&context) == kSuccess && context != nullptr;
}

}  // namespace

EXPORT int FakeLaunches(const char* name) {
  std::lock_guard<std::mutex> lock(mutex);
  int sum = 0;
  for (const auto& [launched, count] : Launches()) {
    if (launched.compare(0, std::strlen(name), name) == 0) sum += count;
  }
  return sum;
}

EXPORT int cuModuleLoadData(void** module, const void* image) {
  if (!HasContext()) return kInvalidContext;
  uint32_t begin;
  std::memcpy(&begin, image, sizeof begin);
  if (begin != kFatBinary || std::getenv("FAKE_CUDA_NO_MODULES") != nullptr) return kNoBinary;
  *module = &the_module;
  return kSuccess;
}

EXPORT int cuModuleGetFunction(void** function, void* module, const char* name) {
  if (module != &the_module) return kInvalidValue;
  for (const std::vector<FakeKernel>* some : {&FakePackKernels(), &FakeCompressKernels()}) {
    for (const FakeKernel& kernel : *some) {
      if (kernel.name != name) continue;
      *function = const_cast<FakeKernel*>(&kernel);
      return kSuccess;
    }
  }
  return kNotFound;
}

EXPORT int cuLaunchKernel(void* function, unsigned blocks, unsigned blocks_y, unsigned blocks_z,
                          unsigned threads, unsigned threads_y, unsigned threads_z, unsigned,
                          void* stream, void** parameters, void**) {
  if (!HasContext()) return kInvalidContext;
  auto* kernel = static_cast<const FakeKernel*>(function);
  bool flat = blocks_y == 1 && blocks_z == 1 && threads_y == 1 && threads_z == 1;
  if (!flat || blocks == 0 || threads != kernel->threads) return kInvalidValue;
  auto launched = std::make_unique<Launched>();
  launched->kernel = kernel;
  std::memcpy(launched->args.bytes, parameters[0], kernel->bytes);
  launched->blocks = blocks;
  {
    std::lock_guard<std::mutex> lock(mutex);
    ++Launches()[kernel->name];
  }
  int result = FakeLaunch(stream, Run, launched.get());
  if (result == kSuccess) launched.release();
  return result;
}
