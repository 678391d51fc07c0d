// A device that can be made to fail and to be slow; its memory is ../fake_cuda/memory.h's.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "../fake_cuda/memory.h"
#include "core/device.h"

namespace smddp_test {

using namespace smddp;

// Device memory that is freed with this object.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes, int device = 0) : address_(FakeAllocateOn(device, bytes)) {}
  ~DeviceMemory() { FakeFree(address_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // For requests.
  void* address() const { return address_; }
  // The bytes, for tests.
  char* bytes() const { return FakeBytes(address_); }

 private:
  void* address_;
};

// Copies to the host run on one thread and copies from it on another, as on a GPU's two engines.
class FakeDevice : public Device {
 public:
  explicit FakeDevice(const char* kind = "fake");
  ~FakeDevice() override;

  const char* kind() const override { return kind_; }
  Status AllocateHost(size_t bytes, void** memory) override;
  void FreeHost(void* memory) override;
  // A stream is a std::atomic<bool>: whether its work has ended. Null: it has none.
  Status Record(void* stream, DevicePoint* point) override;
  void CopyToHost(const std::vector<DeviceCopy>& copies, const DevicePoint& after,
                  Done done) override;
  void CopyFromHost(const std::vector<DeviceCopy>& copies, Done done) override;

  // From copy n on, counted from 0, all fail.
  void FailFrom(int n) { left_ = n; }
  // Microseconds that each copy takes.
  void Slow(int microseconds) { delay_ = microseconds; }
  // Host buffers that were allocated so far.
  int allocations() const { return allocations_; }
  int copies() const { return copies_; }

 private:
  struct Batch {
    std::vector<DeviceCopy> copies;
    DevicePoint after;
    Done done;
  };
  // One of the copy engines.
  struct Engine {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Batch> batches;
    bool stopping = false;
    std::thread thread;
  };
  void Run(Engine* engine);
  void Enqueue(Engine* engine, Batch batch);

  const char* kind_;
  std::atomic<int> left_{1 << 30}, delay_{0}, allocations_{0}, copies_{0};
  Engine to_host_, from_host_;
};

}  // namespace smddp_test
