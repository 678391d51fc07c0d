// A libcuda.so.1 without a GPU: devices whose memory is memory.h's, and whose streams are threads
// that dawdle. It checks what a real driver would: that it was initialized, that a context is
// current, and no longer when the thread ends; that addresses are on the right side, flags are
// known and handles are its own, and of the current context where they are used together. Where a
// real one waits for the GPU, this one does (allocations.cc).
//
// FAKE_CUDA_DELAY=N    each piece of work takes up to N microseconds
// FAKE_CUDA_FAIL=N     from the Nth copy on, counted from 1, the device is broken
// FAKE_CUDA_NO_HOST=1  no pinned memory is left (allocations.cc)
// FAKE_CUDA_NO_MEMORY=1  no memory of the device is left (allocations.cc)
// FAKE_CUDA_NO_MODULES=1  no kernels are taken (kernels.cc)
// FAKE_CUDA_NO_GPU=1   cuInit finds no device
// FAKE_CUDA_CAPABILITY=N the GPUs' compute capability, such as 70; else 90
// FAKE_CUDA_WAITS=1    it waits for the GPU where a real one may, too
// FAKE_CUDA_GPUS=N     there are N devices, not as many as possible (devices.cc)
// FAKE_CUDA_UUID=N     the devices of all processes have this number in their uuids, not the
// process's
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <vector>

#include "core/deadline.h"
#include "core/detached_thread.h"
#include "memory.h"
#include "state.h"

namespace {

using namespace fake_cuda;

std::atomic<bool> initialized{false}, broken{false};
std::atomic<long> copies{0};
std::atomic<int> synchronizations{0};
int the_contexts[kDevices];  // only their addresses count

// A thread that leaves a context behind would break whoever has it next, such as TensorFlow.
struct Contexts : std::vector<void*> {
  ~Contexts() {
    if (empty()) return;
    std::fprintf(stderr, "fake_cuda: a thread ends with a context that it made current\n");
    std::abort();
  }
};
thread_local Contexts contexts;

// What an event waits for: set when the stream gets there.
struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  double seconds = 0;  // when that was
  void Reach() {
    std::lock_guard<std::mutex> lock(mutex);
    reached = true;
    seconds = smddp::NowSeconds();
    changed.notify_all();
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return reached; });
  }
  bool Reached() {
    std::lock_guard<std::mutex> lock(mutex);
    return reached;
  }
};

struct Event {
  void* const context = contexts.back();
  std::shared_ptr<Mark> mark;  // null: never recorded, so there is nothing to wait for
};

class Stream {
 public:
  Stream() {
    smddp::RunDetached([this] { Run(); }, [](const smddp::Status&) { std::abort(); });
  }
  void Enqueue(std::function<void()> work) {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_one();
  }
  std::shared_ptr<Mark> End() {
    auto mark = std::make_shared<Mark>();
    Enqueue([mark] { mark->Reach(); });
    return mark;
  }
  void* const context = contexts.back();

 private:
  void Run() {
    std::mt19937 random(static_cast<unsigned>(getpid()) ^
                        static_cast<unsigned>(reinterpret_cast<uintptr_t>(this) >> 4));
    const long delay = Setting("FAKE_CUDA_DELAY");
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return !queue_.empty(); });
      std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      if (delay > 0) usleep(static_cast<useconds_t>(random() % static_cast<unsigned>(delay + 1)));
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
};

std::mutex handles_mutex;
std::set<void*>& Streams() {
  static auto* streams = new std::set<void*>();
  return *streams;
}
std::set<void*>& Events() {
  static auto* events = new std::set<void*>();
  return *events;
}

template <typename T>
T* Known(std::set<void*>& handles, void* handle) {
  std::lock_guard<std::mutex> lock(handles_mutex);
  return handles.count(handle) != 0 ? static_cast<T*>(handle) : nullptr;
}

int CopyLater(void* to, const void* from, size_t bytes, void* stream_handle, bool from_device,
              bool to_device) {
  if (int problem = Usable(); problem != kSuccess) return problem;
  auto* stream = Known<Stream>(Streams(), stream_handle);
  if (stream == nullptr || stream->context != contexts.back()) return kInvalidHandle;
  if ((FakeIsDevice(to) != 0) != to_device || (FakeIsDevice(from) != 0) != from_device) {
    return kInvalidValue;
  }
  stream->Enqueue([=] {
    long fail = Setting("FAKE_CUDA_FAIL");
    if (++copies >= fail && fail > 0) broken = true;
    if (!broken) std::memcpy(FakeBytes(to), FakeBytes(from), bytes);
  });
  return kSuccess;
}

int WaitFor(const std::vector<std::shared_ptr<Mark>>& ends) {
  for (const auto& end : ends) end->Wait();
  return broken ? kIllegalAddress : kSuccess;
}

}  // namespace

namespace fake_cuda {

long Setting(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::atol(text);
}

bool Initialized() { return initialized; }

int Usable() {
  if (!initialized) return kNotInitialized;
  if (contexts.empty()) return kInvalidContext;
  return broken ? kIllegalAddress : kSuccess;
}

long Capability() {
  constexpr long kHopper = 90;
  long set = Setting("FAKE_CUDA_CAPABILITY");
  return set == 0 ? kHopper : set;
}

void* CurrentContext() { return contexts.empty() ? nullptr : contexts.back(); }

int DeviceOf(const void* context) {
  return static_cast<int>(static_cast<const int*>(context) - the_contexts);
}

void* ContextOfStream(const void* handle) {
  auto* stream = Known<Stream>(Streams(), const_cast<void*>(handle));
  return stream == nullptr ? nullptr : stream->context;
}

int WaitForContext() {
  if (int problem = Usable(); problem != kSuccess) return problem;
  std::vector<std::shared_ptr<Mark>> ends;
  {
    std::lock_guard<std::mutex> lock(handles_mutex);
    for (void* handle : Streams()) {
      auto* stream = static_cast<Stream*>(handle);
      if (stream->context == contexts.back()) ends.push_back(stream->End());
    }
  }
  return WaitFor(ends);
}

void WaitPerhaps() {
  if (Setting("FAKE_CUDA_WAITS") != 0) WaitForContext();
}

}  // namespace fake_cuda

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int cuInit(unsigned flags) {
  if (flags != 0) return kInvalidValue;
  if (Setting("FAKE_CUDA_NO_GPU") != 0) return kNoDevice;
  initialized = true;
  return kSuccess;
}

EXPORT int cuGetErrorString(int error, const char** text) {
  *text = error == kIllegalAddress ? "an illegal memory access was encountered"
          : error == kNoDevice     ? "no CUDA-capable device is detected"
                                   : "a fake error";
  return kSuccess;
}

EXPORT int cuPointerGetAttribute(void* value, int attribute, const void* address) {
  constexpr int kDeviceOrdinal = 9;
  if (!initialized) return kNotInitialized;
  if (attribute != kDeviceOrdinal || FakeIsDevice(address) == 0) return kInvalidValue;
  *static_cast<int*>(value) = FakeDeviceOf(address);
  return kSuccess;
}

EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &the_contexts[device];
  return initialized ? kSuccess : kNotInitialized;
}

EXPORT int cuCtxPushCurrent_v2(void* context) {
  if (context < &the_contexts[0] || context > &the_contexts[kDevices - 1]) return kInvalidContext;
  contexts.push_back(context);
  return kSuccess;
}

EXPORT int cuCtxPopCurrent_v2(void** context) {
  if (contexts.empty()) return kInvalidContext;
  *context = contexts.back();
  contexts.pop_back();
  return kSuccess;
}

EXPORT int cuCtxGetCurrent(void** context) {
  *context = contexts.empty() ? nullptr : contexts.back();
  return kSuccess;
}

EXPORT int cuCtxGetDevice(int* device) {
  if (contexts.empty()) return kInvalidContext;
  *device = DeviceOf(contexts.back());
  return kSuccess;
}

EXPORT int FakeWaitForAll() { return WaitForContext(); }

EXPORT int cuCtxSynchronize() {
  ++synchronizations;
  return FakeWaitForAll();
}

EXPORT int FakeSynchronizations() { return synchronizations; }

EXPORT int cuStreamCreate(void** stream, unsigned flags) {
  if (int problem = Usable(); problem != kSuccess) return problem;
  constexpr unsigned kFlags = 1;
  if (flags > kFlags) return kInvalidValue;
  *stream = new Stream();
  std::lock_guard<std::mutex> lock(handles_mutex);
  Streams().insert(*stream);
  return kSuccess;
}

EXPORT int cuStreamGetCtx(void* handle, void** context) {
  *context = handle == nullptr ? CurrentContext() : ContextOfStream(handle);
  return *context != nullptr ? kSuccess : handle == nullptr ? kInvalidContext : kInvalidHandle;
}

EXPORT int cuStreamSynchronize(void* handle) {
  if (int problem = Usable(); problem != kSuccess && problem != kIllegalAddress) return problem;
  auto* stream = Known<Stream>(Streams(), handle);
  if (stream == nullptr) return kInvalidHandle;
  stream->End()->Wait();
  return broken ? kIllegalAddress : kSuccess;
}

EXPORT int cuStreamWaitEvent(void* stream_handle, void* event_handle, unsigned flags) {
  if (int problem = Usable(); problem != kSuccess) return problem;
  if (flags != 0) return kInvalidValue;
  auto* stream = Known<Stream>(Streams(), stream_handle);
  auto* event = Known<Event>(Events(), event_handle);
  if (stream == nullptr || event == nullptr) return kInvalidHandle;
  if (event->mark != nullptr) stream->Enqueue([mark = event->mark] { mark->Wait(); });
  return kSuccess;
}

EXPORT void FakeRepair() {
  broken = false;
  copies = 0;
}

EXPORT int FakeLaunch(void* handle, void (*work)(void*), void* argument) {
  auto* stream = Known<Stream>(Streams(), handle);
  if (stream == nullptr) return kInvalidHandle;
  stream->Enqueue([=] { work(argument); });
  return kSuccess;
}

EXPORT int FakeIsStream(const void* handle) { return ContextOfStream(handle) != nullptr ? 1 : 0; }

EXPORT void* FakeStreamContext(const void* handle) { return ContextOfStream(handle); }

EXPORT int cuEventCreate(void** event, unsigned flags) {
  if (int problem = Usable(); problem != kSuccess) return problem;
  constexpr unsigned kFlags = 1 | 2 | 4;
  if (flags > kFlags) return kInvalidValue;
  *event = new Event();
  std::lock_guard<std::mutex> lock(handles_mutex);
  Events().insert(*event);
  return kSuccess;
}

EXPORT int cuEventRecord(void* event_handle, void* stream_handle) {
  if (int problem = Usable(); problem != kSuccess) return problem;
  auto* stream = Known<Stream>(Streams(), stream_handle);
  auto* event = Known<Event>(Events(), event_handle);
  if (stream == nullptr || event == nullptr) return kInvalidHandle;
  if (stream->context != event->context) return kInvalidHandle;
  event->mark = stream->End();
  return kSuccess;
}

EXPORT int cuEventSynchronize(void* handle) {
  if (int problem = Usable(); problem != kSuccess && problem != kIllegalAddress) return problem;
  auto* event = Known<Event>(Events(), handle);
  if (event == nullptr) return kInvalidHandle;
  if (event->mark != nullptr) event->mark->Wait();
  return broken ? kIllegalAddress : kSuccess;
}

EXPORT int cuEventQuery(void* handle) {
  if (int problem = Usable(); problem != kSuccess) return problem;
  auto* event = Known<Event>(Events(), handle);
  if (event == nullptr) return kInvalidHandle;
  return event->mark == nullptr || event->mark->Reached() ? kSuccess : kNotReady;
}

EXPORT int cuEventElapsedTime(float* milliseconds, void* begin_handle, void* end_handle) {
  auto* begin = Known<Event>(Events(), begin_handle);
  auto* end = Known<Event>(Events(), end_handle);
  if (begin == nullptr || end == nullptr) return kInvalidHandle;
  if (begin->mark == nullptr || end->mark == nullptr) return kInvalidHandle;
  if (!begin->mark->Reached() || !end->mark->Reached()) return kNotReady;
  *milliseconds = static_cast<float>((end->mark->seconds - begin->mark->seconds) * 1e3);
  return kSuccess;
}

EXPORT int cuEventDestroy_v2(void* handle) {
  if (int problem = Usable(); problem != kSuccess && problem != kIllegalAddress) return problem;
  std::lock_guard<std::mutex> lock(handles_mutex);
  if (Events().erase(handle) == 0) return kInvalidHandle;
  delete static_cast<Event*>(handle);
  return kSuccess;
}

EXPORT int cuMemcpyDtoHAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
  return CopyLater(to, from, bytes, stream, true, false);
}

EXPORT int cuMemcpyHtoDAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
  return CopyLater(to, from, bytes, stream, false, true);
}

EXPORT int cuMemcpyDtoDAsync_v2(void* to, const void* from, size_t bytes, void* stream) {
  return CopyLater(to, from, bytes, stream, true, true);
}
