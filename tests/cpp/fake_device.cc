#include "fake_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

namespace smddp_test {
namespace {

// All device memory: where it seems to be, how much it is, and where it is.
struct Region {
  size_t size;
  char* bytes;
};
std::mutex regions_mutex;
std::map<uintptr_t, Region> regions;

// The real address of device address `at`; a host address is itself.
char* Resolve(const void* at) {
  std::lock_guard<std::mutex> lock(regions_mutex);
  auto key = reinterpret_cast<uintptr_t>(at);
  auto it = regions.upper_bound(key);
  if (it != regions.begin() && key - (--it)->first < it->second.size) {
    return it->second.bytes + (key - it->first);
  }
  return static_cast<char*>(const_cast<void*>(at));
}

}  // namespace

DeviceMemory::DeviceMemory(size_t bytes) : size_(bytes + 1) {  // an empty tensor has an address too
  bytes_ = static_cast<char*>(std::calloc(size_, 1));
  address_ = ::mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::lock_guard<std::mutex> lock(regions_mutex);
  regions[reinterpret_cast<uintptr_t>(address_)] = {size_, bytes_};
}

DeviceMemory::~DeviceMemory() {
  {
    std::lock_guard<std::mutex> lock(regions_mutex);
    regions.erase(reinterpret_cast<uintptr_t>(address_));
  }
  ::munmap(address_, size_);
  std::free(bytes_);
}

FakeDevice::FakeDevice(const char* kind) : kind_(kind) {
  to_host_.thread = std::thread([this] { Run(&to_host_); });
  from_host_.thread = std::thread([this] { Run(&from_host_); });
}

FakeDevice::~FakeDevice() {
  for (Engine* engine : {&to_host_, &from_host_}) {
    {
      std::lock_guard<std::mutex> lock(engine->mutex);
      engine->stopping = true;
    }
    engine->changed.notify_all();
    engine->thread.join();
  }
}

void* FakeDevice::AllocateHost(size_t bytes) {
  ++allocations_;
  return std::aligned_alloc(64, (bytes + 63) / 64 * 64);
}

void FakeDevice::FreeHost(void* memory) { std::free(memory); }

Status FakeDevice::Record(void* stream, DevicePoint* point) {
  *point = DevicePoint(stream, [](void*) {});
  return {};
}

void FakeDevice::CopyToHost(const std::vector<DeviceCopy>& copies, const DevicePoint& after,
                            Done done) {
  Enqueue(&to_host_, {copies, after, std::move(done)});
}

void FakeDevice::CopyFromHost(const std::vector<DeviceCopy>& copies, Done done) {
  Enqueue(&from_host_, {copies, nullptr, std::move(done)});
}

void FakeDevice::Enqueue(Engine* engine, Batch batch) {
  std::lock_guard<std::mutex> lock(engine->mutex);
  engine->batches.push_back(std::move(batch));
  engine->changed.notify_all();
}

void FakeDevice::Run(Engine* engine) {
  std::unique_lock<std::mutex> lock(engine->mutex);
  for (;;) {
    engine->changed.wait(lock, [&] { return engine->stopping || !engine->batches.empty(); });
    if (engine->batches.empty()) return;
    Batch batch = std::move(engine->batches.front());
    engine->batches.pop_front();
    lock.unlock();
    const auto* ended = static_cast<const std::atomic<bool>*>(batch.after.get());
    while (ended != nullptr && !*ended) ::usleep(200);
    if (delay_ > 0) ::usleep(static_cast<useconds_t>(delay_));
    Status status;
    if (copies_++ >= left_) status = {Code::kSystem, "the bus has failed"};
    for (const DeviceCopy& copy : batch.copies) {
      if (status.ok()) std::memcpy(Resolve(copy.to), Resolve(copy.from), copy.bytes);
    }
    batch.done(status);
    lock.lock();
  }
}

}  // namespace smddp_test
