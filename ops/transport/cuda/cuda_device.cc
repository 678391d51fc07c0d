#include "transport/cuda/cuda_device.h"

#include <map>
#include <utility>  // for move

#include "core/detached_thread.h"
#include "core/guarded.h"
#include "core/log.h"

namespace smddp {
namespace {

// The ordinal, which is what the driver numbers devices by, of the device that a stream is on, or
// for kEveryStream that this thread uses; -1 if there is none.
int OrdinalOf(const CudaDriver& driver, void* stream) {
  void* context = nullptr;
  int ordinal = -1;
  bool every = stream == kEveryStream;
  if (!every && driver.StreamGetCtx(stream, &context) != kCudaSuccess) return ordinal;
  if (!every && driver.CtxPushCurrent(context) != kCudaSuccess) return ordinal;
  if (driver.CtxGetDevice(&ordinal) != kCudaSuccess) ordinal = -1;
  if (!every) static_cast<void>(driver.CtxPopCurrent(&context));
  return ordinal;
}

}  // namespace

Status CudaDevice::Find(const void* address, CudaDevice** device, void* stream) {
  static std::mutex mutex;
  // Never deleted, nor are the devices: threads wait for their copies, and TensorFlow's may come
  // here while the process exits.
  static auto& devices = *new std::map<int, CudaDevice*>();
  std::string why;
  const CudaDriver* driver = CudaDriver::Open(&why);
  if (driver == nullptr) {
    return {Code::kSystem, "the tensors are on a GPU, but its driver cannot be used: " + why};
  }
  std::lock_guard<std::mutex> lock(mutex);
  static int last = 0;
  int ordinal = -1;
  if (address != nullptr) {
    CudaResult result = driver->PointerGetAttribute(&ordinal, kCudaPointerDeviceOrdinal, address);
    if (result != kCudaSuccess) return driver->Failure("cuPointerGetAttribute", result);
  } else {
    // Not just any: to open a device takes memory of it, which may be another rank's.
    ordinal = OrdinalOf(*driver, stream);
    if (ordinal < 0) ordinal = last;
  }
  CudaDevice*& known = devices[ordinal];
  if (known == nullptr) {
    auto opened = std::unique_ptr<CudaDevice>(new CudaDevice(driver, ordinal));
    Status status = opened->Open();
    if (!status.ok()) {
      devices.erase(ordinal);
      return status;
    }
    known = opened.release();
  }
  *device = known;
  last = ordinal;
  return {};
}

Status CudaDevice::Open() {
  int number = 0;
  CudaResult result = driver_.DeviceGet(&number, ordinal_);
  if (result != kCudaSuccess) return driver_.Failure("cuDeviceGet", result);
  result = driver_.DevicePrimaryCtxRetain(&context_, number);
  if (result != kCudaSuccess) return driver_.Failure("cuDevicePrimaryCtxRetain", result);
  Current current(this);
  if (!current.status().ok()) return current.status();
  for (Direction* direction : {&to_host_, &from_host_}) {
    result = driver_.StreamCreate(&direction->stream, kCudaStreamNonBlocking);
    if (result != kCudaSuccess) return driver_.Failure("cuStreamCreate", result);
  }
  for (Direction* direction : {&to_host_, &from_host_}) {
    RunDetached([this, direction] { Wait(direction); },
                [](const Status& thrown) { LogError("no more copies: " + thrown.message()); });
  }
  return {};
}

Status CudaDevice::AllocateHost(size_t bytes, void** memory) {
  Current current(this);
  if (!current.status().ok()) return current.status();
  CudaResult result = driver_.MemHostAlloc(memory, bytes, kCudaHostAllocPortable);
  return result == kCudaSuccess ? Status() : driver_.Failure("cuMemHostAlloc", result);
}

void CudaDevice::FreeHost(void* memory) {
  Current current(this);
  driver_.MemFreeHost(memory);
}

Status CudaDevice::Mark(void* stream, void** event) {
  CudaResult result = driver_.EventCreate(event, kCudaEventBlockingSync | kCudaEventDisableTiming);
  if (result != kCudaSuccess) return driver_.Failure("cuEventCreate", result);
  result = driver_.EventRecord(*event, stream);
  if (result == kCudaSuccess) return {};
  driver_.EventDestroy(*event);
  return driver_.Failure("cuEventRecord", result);
}

Status CudaDevice::Record(void* stream, DevicePoint* point) {
  point->reset();
  Current current(this);
  if (!current.status().ok()) return current.status();
  if (stream == kEveryStream) {
    CudaResult result = driver_.CtxSynchronize();
    return result == kCudaSuccess ? Status() : driver_.Failure("cuCtxSynchronize", result);
  }
  void* event = nullptr;
  Status status = Mark(stream, &event);
  if (!status.ok()) return status;
  *point = DevicePoint(event, [this](void* old) {
    Current current(this);
    driver_.EventDestroy(old);
  });
  return {};
}

void CudaDevice::CopyToHost(const std::vector<DeviceCopy>& copies, const DevicePoint& after,
                            Done done) {
  Start(&to_host_, driver_.MemcpyDtoHAsync, copies, after, std::move(done));
}

void CudaDevice::CopyFromHost(const std::vector<DeviceCopy>& copies, Done done) {
  Start(&from_host_, driver_.MemcpyHtoDAsync, copies, nullptr, std::move(done));
}

Status CudaDevice::Uuid(char (&uuid)[kCudaUuidBytes]) const {
  int number = 0;
  CudaResult result = driver_.DeviceGet(&number, ordinal_);
  if (result != kCudaSuccess) return driver_.Failure("cuDeviceGet", result);
  result = driver_.DeviceGetUuid(uuid, number);
  return result == kCudaSuccess ? Status() : driver_.Failure("cuDeviceGetUuid", result);
}

Status CudaDevice::Capability(uint32_t* capability) const {
  int number = 0, major = 0, minor = 0;
  CudaResult result = driver_.DeviceGet(&number, ordinal_);
  if (result != kCudaSuccess) return driver_.Failure("cuDeviceGet", result);
  result = driver_.DeviceGetAttribute(&major, kCudaCapabilityMajor, number);
  if (result == kCudaSuccess) {
    result = driver_.DeviceGetAttribute(&minor, kCudaCapabilityMinor, number);
  }
  *capability = static_cast<uint32_t>(10 * major + minor);
  return result == kCudaSuccess ? Status() : driver_.Failure("cuDeviceGetAttribute", result);
}

Status CudaDevice::NewStream(void** stream) {
  Current current(this);
  if (!current.status().ok()) return current.status();
  CudaResult result = driver_.StreamCreate(stream, kCudaStreamNonBlocking);
  return result == kCudaSuccess ? Status() : driver_.Failure("cuStreamCreate", result);
}

Status CudaDevice::WaitIn(void* stream, const DevicePoint& point) {
  if (point == nullptr) return {};
  Current current(this);
  if (!current.status().ok()) return current.status();
  CudaResult result = driver_.StreamWaitEvent(stream, point.get(), 0);
  return result == kCudaSuccess ? Status() : driver_.Failure("cuStreamWaitEvent", result);
}

Status CudaDevice::Reached(const DevicePoint& point, bool* reached) {
  *reached = true;
  if (point == nullptr) return {};
  Current current(this);
  if (!current.status().ok()) return current.status();
  CudaResult result = driver_.EventQuery(point.get());
  *reached = result == kCudaSuccess;
  bool fine = result == kCudaSuccess || result == kCudaNotReady;
  return fine ? Status() : driver_.Failure("cuEventQuery", result);
}

Status CudaDevice::Allocate(size_t bytes, std::shared_ptr<char>* memory) {
  Current current(this);
  if (!current.status().ok()) return current.status();
  void* made = nullptr;
  CudaResult result = driver_.MemAlloc(&made, bytes);
  if (result != kCudaSuccess) return driver_.Failure("cuMemAlloc", result);
  *memory = std::shared_ptr<char>(static_cast<char*>(made), [this](char* old) {
    Current current(this);
    driver_.MemFree(old);
  });
  return {};
}

Status CudaDevice::CopyIn(void* stream, const DeviceCopy& copy) {
  Current current(this);
  if (!current.status().ok()) return current.status();
  CudaResult result = driver_.MemcpyHtoDAsync(copy.to, copy.from, copy.bytes, stream);
  return result == kCudaSuccess ? Status() : driver_.Failure("cuMemcpyHtoDAsync", result);
}

Status CudaDevice::Enqueue(Copy copy, const std::vector<DeviceCopy>& copies,
                           const DevicePoint& after, void* stream, void** event) {
  if (after != nullptr) {
    CudaResult result = driver_.StreamWaitEvent(stream, after.get(), 0);
    if (result != kCudaSuccess) return driver_.Failure("cuStreamWaitEvent", result);
  }
  for (const DeviceCopy& one : copies) {
    CudaResult result = copy(one.to, one.from, one.bytes, stream);
    if (result != kCudaSuccess) return driver_.Failure("cuMemcpyAsync", result);
  }
  return Mark(stream, event);
}

void CudaDevice::Start(Direction* direction, Copy copy, const std::vector<DeviceCopy>& copies,
                       const DevicePoint& after, Done done) {
  Status status;
  {
    std::lock_guard<std::mutex> lock(direction->mutex);
    Current current(this);
    void* event = nullptr;
    status = current.status();
    if (status.ok()) status = Enqueue(copy, copies, after, direction->stream, &event);
    if (status.ok()) {
      direction->pending.emplace_back(event, std::move(done));
      direction->changed.notify_one();
      return;
    }
    // Some of the copies may be under way in memory that the caller reuses.
    driver_.StreamSynchronize(direction->stream);
  }
  done(status);
}

void CudaDevice::Wait(Direction* direction) {
  for (;;) {
    std::unique_lock<std::mutex> lock(direction->mutex);
    direction->changed.wait(lock, [&] { return !direction->pending.empty(); });
    auto [event, done] = std::move(direction->pending.front());
    direction->pending.pop_front();
    lock.unlock();
    Status status;
    {
      Current current(this);
      CudaResult result = driver_.EventSynchronize(event);
      if (result != kCudaSuccess) status = driver_.Failure("cuEventSynchronize", result);
      driver_.EventDestroy(event);
    }
    Guarded([&] { done(status); },
            [](const Status& thrown) { LogError("after a copy: " + thrown.message()); });
  }
}

}  // namespace smddp
