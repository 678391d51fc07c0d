#include "memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>

namespace {

struct Region {
  size_t size;
  char* bytes;
  int device;
};

std::mutex mutex;
std::map<uintptr_t, Region>& Regions() {
  static auto* regions = new std::map<uintptr_t, Region>();  // outlives every thread
  return *regions;
}

// The region of an address; the end if it is the host's.
std::map<uintptr_t, Region>::iterator Find(uintptr_t address) {
  auto it = Regions().upper_bound(address);
  if (it == Regions().begin()) return Regions().end();
  --it;
  return address - it->first < it->second.size ? it : Regions().end();
}

}  // namespace

void* FakeAllocate(size_t bytes) { return FakeAllocateOn(0, bytes); }

void* FakeAllocateOn(int device, size_t bytes) {
  size_t size = bytes + 1;  // empty tensors have addresses too
  auto* real = static_cast<char*>(std::calloc(size, 1));
  void* address = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::lock_guard<std::mutex> lock(mutex);
  Regions()[reinterpret_cast<uintptr_t>(address)] = {size, real, device};
  return address;
}

void FakeFree(void* address) {
  Region region{};
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto it = Regions().find(reinterpret_cast<uintptr_t>(address));
    if (it == Regions().end()) return;
    region = it->second;
    Regions().erase(it);
  }
  munmap(address, region.size);
  std::free(region.bytes);
}

char* FakeBytes(const void* address) {
  std::lock_guard<std::mutex> lock(mutex);
  auto key = reinterpret_cast<uintptr_t>(address);
  auto it = Find(key);
  if (it == Regions().end()) return static_cast<char*>(const_cast<void*>(address));
  return it->second.bytes + (key - it->first);
}

int FakeDeviceOf(const void* address) {
  std::lock_guard<std::mutex> lock(mutex);
  auto it = Find(reinterpret_cast<uintptr_t>(address));
  return it == Regions().end() ? -1 : it->second.device;
}

int FakeIsDevice(const void* address) { return FakeDeviceOf(address) >= 0 ? 1 : 0; }

int FakeBegins(const void* address) {
  std::lock_guard<std::mutex> lock(mutex);
  return Regions().count(reinterpret_cast<uintptr_t>(address)) != 0 ? 1 : 0;
}
