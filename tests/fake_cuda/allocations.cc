// Memory of the fake driver. As with the real one, what frees memory waits until the GPU stands
// still, and what takes some may (FAKE_CUDA_WAITS): who holds up, meanwhile, what a kernel waits
// for hangs.
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <set>

#include "memory.h"
#include "state.h"

namespace {

using namespace fake_cuda;

constexpr size_t kPage = 4096;

std::mutex mutex;
std::set<void*>& HostMemory() {
  static auto* memory = new std::set<void*>();
  return *memory;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) {
  if (int problem = Usable(); problem != kSuccess) return problem;
  constexpr unsigned kFlags = 1 | 2 | 4;
  if (bytes == 0 || flags > kFlags) return kInvalidValue;
  if (Setting("FAKE_CUDA_NO_HOST") != 0) return kOutOfMemory;
  WaitPerhaps();
  *memory = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  if (*memory == nullptr) return kOutOfMemory;
  std::lock_guard<std::mutex> lock(mutex);
  HostMemory().insert(*memory);
  return kSuccess;
}

EXPORT int cuMemFreeHost(void* memory) {
  int problem = Usable();
  if (problem != kSuccess && problem != kIllegalAddress) return problem;
  WaitForContext();
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (HostMemory().erase(memory) == 0) return kInvalidValue;
  }
  std::free(memory);
  return problem;
}

EXPORT int cuMemAlloc_v2(void** address, size_t bytes) {
  if (int problem = Usable(); problem != kSuccess) return problem;
  if (bytes == 0) return kInvalidValue;
  if (Setting("FAKE_CUDA_NO_MEMORY") != 0) return kOutOfMemory;
  WaitPerhaps();
  *address = FakeAllocateOn(DeviceOf(CurrentContext()), bytes);
  return kSuccess;
}

EXPORT int cuMemFree_v2(void* address) {
  int problem = Usable();
  if (problem != kSuccess && problem != kIllegalAddress) return problem;
  if (FakeBegins(address) == 0) return kInvalidValue;
  WaitForContext();
  FakeFree(address);
  return problem;
}
