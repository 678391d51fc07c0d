// CudaDevice: the memory of an NVIDIA GPU, copied by CUDA's driver.
//
// Each direction has a stream of its own, which does not wait for anything but the given point, and
// a thread that waits for its copies. The device's primary context is used, as TensorFlow does.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/device.h"
#include "transport/cuda/driver.h"

namespace smddp {

class CudaDevice : public Device {
 public:
  // The device that `address` belongs to; for null, of tensors without elements, the stream's, or
  // if that is unknown the one that was found last. Devices live until the process ends.
  static Status Find(const void* address, CudaDevice** device, void* stream = kEveryStream);

  // Makes the device's context current on this thread, which may have another one.
  class Current;

  const char* kind() const override { return "cuda"; }
  Status AllocateHost(size_t bytes, void** memory) override;
  void FreeHost(void* memory) override;
  Status Record(void* stream, DevicePoint* point) override;
  void CopyToHost(const std::vector<DeviceCopy>& copies, const DevicePoint& after,
                  Done done) override;
  void CopyFromHost(const std::vector<DeviceCopy>& copies, Done done) override;

  // Streams and points for work that others enqueue. No two GPUs have the same uuid.
  Status Uuid(char (&uuid)[kCudaUuidBytes]) const;
  // 10 times the major number and the minor one: 90 for sm_90.
  Status Capability(uint32_t* capability) const;
  Status NewStream(void** stream);
  // What is enqueued in `stream` later starts when `point` has been reached; a null point has been.
  Status WaitIn(void* stream, const DevicePoint& point);
  Status Reached(const DevicePoint& point, bool* reached);

  // Memory of the GPU, aligned to 256 bytes. To free it may wait for all that the GPU does.
  Status Allocate(size_t bytes, std::shared_ptr<char>* memory);
  // Enqueues a copy from host memory of AllocateHost().
  Status CopyIn(void* stream, const DeviceCopy& copy);

  const CudaDriver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }

 private:
  using Copy = CudaResult (*)(void* to, const void* from, size_t bytes, void* stream);
  struct Direction {
    void* stream = nullptr;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::pair<void*, Done>> pending;  // an event after the copies; in stream order
  };

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

class CudaDevice::Current {
 public:
  explicit Current(const CudaDevice* device) : driver_(device->driver_) {
    result_ = driver_.CtxPushCurrent(device->context_);
  }
  ~Current() {
    void* ignored = nullptr;
    if (result_ == kCudaSuccess) driver_.CtxPopCurrent(&ignored);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  Status status() const {
    return result_ == kCudaSuccess ? Status() : driver_.Failure("cuCtxPushCurrent", result_);
  }

 private:
  const CudaDriver& driver_;
  CudaResult result_;
};

}  // namespace smddp
