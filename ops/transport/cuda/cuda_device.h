// CudaDevice: the memory of an NVIDIA GPU, copied by CUDA's driver.
//
// Each direction has a stream of its own, which does not wait for anything but the given point, and
// a thread that waits for its copies. The device's primary context is used, as TensorFlow does.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "core/device.h"
#include "transport/cuda/driver.h"

namespace smddp {

class CudaDevice : public Device {
 public:
  // The device that `address` belongs to, or any device for null (of tensors without elements).
  // Devices live until the process ends.
  static Status Find(const void* address, CudaDevice** device);

  const char* kind() const override { return "cuda"; }
  Status AllocateHost(size_t bytes, void** memory) override;
  void FreeHost(void* memory) override;
  Status Record(void* stream, DevicePoint* point) override;
  void CopyToHost(const std::vector<DeviceCopy>& copies, const DevicePoint& after,
                  Done done) override;
  void CopyFromHost(const std::vector<DeviceCopy>& copies, Done done) override;

 private:
  using Copy = CudaResult (*)(void* to, const void* from, size_t bytes, void* stream);
  struct Direction {
    void* stream = nullptr;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::pair<void*, Done>> pending;  // an event after the copies; in stream order
  };
  class Current;

  CudaDevice(const CudaDriver* driver, int ordinal) : driver_(*driver), ordinal_(ordinal) {}
  Status Open();
  // Creates an event after what was enqueued in `stream`.
  Status Mark(void* stream, void** event);
  Status Enqueue(Copy copy, const std::vector<DeviceCopy>& copies, const DevicePoint& after,
                 void* stream, void** event);
  void Start(Direction* direction, Copy copy, const std::vector<DeviceCopy>& copies,
             const DevicePoint& after, Done done);
  void Wait(Direction* direction);

  const CudaDriver& driver_;
  const int ordinal_;
  void* context_ = nullptr;
  Direction to_host_, from_host_;
};

}  // namespace smddp
