// Blocking copies between a GPU and the host.
#include <condition_variable>
#include <functional>
#include <mutex>

#include "capi/last_error.h"
#include "capi/smddp.h"
#include "transport/cuda/cuda_device.h"

using namespace smddp;  // this file has C functions only

namespace {

// Starts a copy and waits for it.
Status Await(const std::function<void(Device::Done)>& start) {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  Status result;
  start([&](const Status& status) {
    std::lock_guard<std::mutex> lock(mutex);
    result = status;
    over = true;
    changed.notify_one();
  });
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return over; });
  return result;
}

}  // namespace

int smddp_copy_to_host(void* to, const void* from, size_t bytes, void* stream) {
  return ReturnOf([&] {
    CudaDevice* device = nullptr;
    DevicePoint ready;
    Status status = CudaDevice::Find(from, &device);
    if (status.ok()) status = device->Record(stream, &ready);
    if (!status.ok()) return status;
    return Await([&](Device::Done done) {
      device->CopyToHost({{to, from, bytes}}, ready, std::move(done));
    });
  });
}

int smddp_copy_from_host(void* to, const void* from, size_t bytes) {
  return ReturnOf([&] {
    CudaDevice* device = nullptr;
    Status status = CudaDevice::Find(to, &device);
    if (!status.ok()) return status;
    return Await(
        [&](Device::Done done) { device->CopyFromHost({{to, from, bytes}}, std::move(done)); });
  });
}
