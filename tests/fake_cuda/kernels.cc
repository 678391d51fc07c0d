// Modules and launches of the fake driver: kernels are those of kernels.h, and run on a stream's
// thread. A module is taken for ours if it looks like a fat binary of nvcc's, code of this GPU's
// generation or PTX; any other has no code for this device. As with the real one, a module and its
// functions belong to the context that was current when it was loaded, and are launched in streams
// of that only.
#include "kernels.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "memory.h"
#include "state.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace fake_cuda;

// What nvcc's files begin with, and those for one GPU (an ELF file).
constexpr uint32_t kFatBinary = 0xba55ed50, kElf = 0x464c457f;

bool HasCode(const char* image) {
  uint32_t begin;
  std::memcpy(&begin, image, sizeof begin);
  if (begin == kFatBinary) return true;
  if (begin != kElf) return std::strncmp(image, "//", 2) == 0;  // PTX
  // The file's machine, which is CUDA's, and its flags: the GPU is in their second byte, or, if
  // that is 5, in the first one (as of sm_100, and before).
  constexpr size_t kMachineAt = 18, kFlagsAt = 48;
  constexpr unsigned kCuda = 190, kOlder = 5;
  uint16_t machine;
  uint32_t flags;
  std::memcpy(&machine, image + kMachineAt, sizeof machine);
  std::memcpy(&flags, image + kFlagsAt, sizeof flags);
  unsigned first = flags & 0xff, second = flags >> 8 & 0xff;
  unsigned gpu = second == kOlder ? first : second;
  unsigned own = static_cast<unsigned>(Capability());
  return machine == kCuda && gpu / 10 == own / 10 && gpu <= own;
}

struct Module {
  void* context;
};
struct Function {
  const FakeKernel* kernel;
  void* context;
};

std::mutex mutex;  // protects the three below
std::set<void*>& Modules() {
  static auto* modules = new std::set<void*>();
  return *modules;
}
std::map<std::pair<const void*, std::string>, Function>& Functions() {
  static auto* functions = new std::map<std::pair<const void*, std::string>, Function>();
  return *functions;
}
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

const FakeKernel* Find(const char* name) {
  for (const FakeKernel& kernel : FakePackKernels()) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
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
  if (int problem = Usable(); problem != kSuccess) return problem;
  bool none = std::getenv("FAKE_CUDA_NO_MODULES") != nullptr;
  if (none || !HasCode(static_cast<const char*>(image))) return kNoBinary;
  WaitPerhaps();
  *module = new Module{CurrentContext()};
  std::lock_guard<std::mutex> lock(mutex);
  Modules().insert(*module);
  return kSuccess;
}

EXPORT int cuModuleGetFunction(void** function, void* module, const char* name) {
  if (int problem = Usable(); problem != kSuccess) return problem;
  std::lock_guard<std::mutex> lock(mutex);
  if (Modules().count(module) == 0) return kInvalidHandle;
  const FakeKernel* kernel = Find(name);
  if (kernel == nullptr) return kNotFound;
  Function& made = Functions()[{module, name}];
  made = {kernel, static_cast<Module*>(module)->context};
  *function = &made;
  return kSuccess;
}

EXPORT int cuLaunchKernel(void* handle, unsigned blocks, unsigned blocks_y, unsigned blocks_z,
                          unsigned threads, unsigned threads_y, unsigned threads_z,
                          unsigned shared_bytes, void* stream, void** parameters, void** extra) {
  if (int problem = Usable(); problem != kSuccess) return problem;
  constexpr unsigned kMostBlocks = 0x7fffffff;
  auto* function = static_cast<const Function*>(handle);
  bool here = function->context == CurrentContext() && ContextOfStream(stream) == function->context;
  if (!here) return kInvalidHandle;
  const FakeKernel* kernel = function->kernel;
  bool flat = blocks_y == 1 && blocks_z == 1 && threads_y == 1 && threads_z == 1;
  if (!flat || blocks == 0 || blocks > kMostBlocks || threads != kernel->threads ||
      shared_bytes != 0 || extra != nullptr) {
    return kInvalidValue;
  }
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
