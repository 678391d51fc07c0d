// The kernels of ops/kernels/cuda as the fake driver runs them: their bodies compiled for the CPU,
// one lane after another, on a stream's thread. A module is taken for ours if it looks like what
// nvcc makes; any other has no code for this device.
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/pack_body.h"
#include "memory.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int cuCtxGetCurrent(void** context);

namespace {

using smddp::Byte, smddp::Half, smddp::Bfloat16, smddp::PackArgs, smddp::PackEntry;

enum Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kInvalidContext = 201,
  kNoBinary = 209,
  kNotFound = 500
};

constexpr uint32_t kFatBinary = 0xba55ed50;  // what nvcc's files begin with

struct Kernel {
  const char* name;
  void (*run_lane)(const PackArgs& args, uint64_t tile, uint32_t lane);
};
Kernel kernels[] = {
#define FAKE_KERNEL(name, tensor, wire)             \
  {"smddp_pack_" #name, smddp::Pack<tensor, wire>}, \
      {"smddp_unpack_" #name, smddp::Unpack<tensor, wire>},
    SMDDP_PACK_KERNELS(FAKE_KERNEL)
#undef FAKE_KERNEL
};
char the_module;  // only its address counts

std::mutex mutex;
std::map<std::string, int>& Launches() {
  static auto* launches = new std::map<std::string, int>();
  return *launches;
}

struct Launched {
  const Kernel* kernel;
  PackArgs args;
  uint64_t tiles;
};

// Finds out where the bytes of the device's addresses are, then runs all lanes.
void Run(void* argument) {
  std::unique_ptr<Launched> launched(static_cast<Launched*>(argument));
  PackArgs args = launched->args;
  std::vector<PackEntry> entries(args.num_entries);
  std::memcpy(entries.data(), FakeBytes(args.entries), entries.size() * sizeof(PackEntry));
  for (PackEntry& entry : entries) {
    entry.in = FakeBytes(entry.in);
    entry.out = FakeBytes(entry.out);
  }
  args.entries = entries.data();
  args.wire = FakeBytes(args.wire);
  for (uint64_t tile = 0; tile < launched->tiles; ++tile) {
    for (uint32_t lane = 0; lane < smddp::kPackLanes; ++lane) {
      launched->kernel->run_lane(args, tile, lane);
    }
  }
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
  if (begin != kFatBinary) return kNoBinary;
  *module = &the_module;
  return kSuccess;
}

EXPORT int cuModuleGetFunction(void** function, void* module, const char* name) {
  if (module != &the_module) return kInvalidValue;
  for (Kernel& kernel : kernels) {
    if (std::strcmp(kernel.name, name) != 0) continue;
    *function = &kernel;
    return kSuccess;
  }
  return kNotFound;
}

EXPORT int cuLaunchKernel(void* function, unsigned blocks, unsigned blocks_y, unsigned blocks_z,
                          unsigned threads, unsigned threads_y, unsigned threads_z, unsigned,
                          void* stream, void** parameters, void**) {
  if (!HasContext()) return kInvalidContext;
  auto* kernel = static_cast<const Kernel*>(function);
  bool known = kernel >= std::begin(kernels) && kernel < std::end(kernels);
  bool flat = blocks_y == 1 && blocks_z == 1 && threads_y == 1 && threads_z == 1;
  if (!known || !flat || blocks == 0 || threads != smddp::kPackThreads) return kInvalidValue;
  auto launched = std::make_unique<Launched>();
  launched->kernel = kernel;
  std::memcpy(&launched->args, parameters[0], sizeof launched->args);
  launched->tiles = uint64_t{blocks} * (threads / smddp::kPackLanes);
  {
    std::lock_guard<std::mutex> lock(mutex);
    ++Launches()[kernel->name];
  }
  int result = FakeLaunch(stream, Run, launched.get());
  if (result == kSuccess) launched.release();
  return result;
}
