// Device: memory that the host must not touch, such as that of a GPU, and the copies between it and
// the host's.
//
// The core never dereferences an address of a device: it hands the address back to the device's own
// functions. So everything above works without the device's library, and with a simulated device.
#pragma once

#include <cstddef>
#include <cstdint>
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

// As a stream: whatever the device has to do. Record() then waits for it on the calling thread.
inline void* const kEveryStream = reinterpret_cast<void*>(~uintptr_t{0});

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
  // alignment of a cache line.
  virtual Status AllocateHost(size_t bytes, void** memory) = 0;
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
  // Whether Get() would make none. To make some may wait for all that the device does.
  bool Has(const Device* device, size_t bytes) const {
    return device == device_ && bytes <= bytes_;
  }
  // Sets *memory to at least `bytes`. Copies that are in flight share it, so it may be asked for
  // more at any time.
  Status Get(Device* device, size_t bytes, std::shared_ptr<char>* memory) {
    if (!Has(device, bytes)) {
      memory_.reset();
      bytes_ = 0;
      void* made = nullptr;
      Status status = device->AllocateHost(bytes, &made);
      if (!status.ok()) return status;
      memory_ = std::shared_ptr<char>(static_cast<char*>(made),
                                      [device](char* old) { device->FreeHost(old); });
      device_ = device;
      bytes_ = bytes;
    }
    *memory = memory_;
    return {};
  }

 private:
  Device* device_ = nullptr;
  size_t bytes_ = 0;
  std::shared_ptr<char> memory_;
};

}  // namespace smddp
