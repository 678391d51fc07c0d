#include "fake_device.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace smddp_test {
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

Status FakeDevice::AllocateHost(size_t bytes, void** memory) {
  ++allocations_;
  *memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  return {};
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
      if (status.ok()) std::memcpy(FakeBytes(copy.to), FakeBytes(copy.from), copy.bytes);
    }
    batch.done(status);
    lock.lock();
  }
}

}  // namespace smddp_test
