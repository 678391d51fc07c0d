// Device: memory that the host must not touch, such as that of a GPU, and the copies between it and
// the host's.
//
// The core never dereferences an address of a device: it hands the address back to the device's own
// functions. So everything above works without the device's library, and with a simulated device.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "core/status.h"

namespace smddp {

struct DeviceCopy {
  void* to;
  const void* from;
  size_t bytes;
};

// A point in a stream of the device: reached once all work that was enqueued before it has ended.
using DevicePoint = std::shared_ptr<void>;

// All functions may be called from any thread. The copies run in the background: `done` is called
// exactly once, on any thread, possibly before the call returns. Copies to the host and copies to
// the device do not wait for each other.
class Device {
 public:
  using Done = std::function<void(const Status&)>;
  virtual ~Device() = default;

  // "cuda". All ranks of a collective must have their tensors in memory of the same kind.
  virtual const char* kind() const = 0;
  // Host memory that the device copies to and from without an intermediate copy, with at least the
  // alignment of a cache line; null if there is none left.
  virtual void* AllocateHost(size_t bytes) = 0;
  virtual void FreeHost(void* memory) = 0;
  // The current end of `stream`, a handle that only the device understands.
  virtual Status Record(void* stream, DevicePoint* point) = 0;
  // Starts when `after` has been reached.
  virtual void CopyToHost(const std::vector<DeviceCopy>& copies, const DevicePoint& after,
                          Done done) = 0;
  virtual void CopyFromHost(const std::vector<DeviceCopy>& copies, Done done) = 0;
};

// Host memory for the copies of a device. It grows and is kept, because a driver takes milliseconds
// to make memory known to its device.
class HostBuffer {
 public:
  // At least `bytes`; null if there is no memory left. Copies that are in flight share it, so it
  // may be asked for more at any time.
  std::shared_ptr<char> Get(Device* device, size_t bytes) {
    if (device == device_ && bytes <= bytes_) return memory_;
    memory_.reset();
    bytes_ = 0;
    auto* memory = static_cast<char*>(device->AllocateHost(bytes));
    if (memory == nullptr) return nullptr;
    memory_ = std::shared_ptr<char>(memory, [device](char* old) { device->FreeHost(old); });
    device_ = device;
    bytes_ = bytes;
    return memory_;
  }

 private:
  Device* device_ = nullptr;
  size_t bytes_ = 0;
  std::shared_ptr<char> memory_;
};

}  // namespace smddp
