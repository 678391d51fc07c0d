// A GPU for TensorFlow without a GPU: a pluggable device of type "GPU" on the driver in
// ../fake_cuda, so TensorFlow places tensors in memory that the host cannot access. It has a kernel
// of one op, Square, which reads its input late, as kernels on a stream do. What else has none for
// a GPU runs on the CPU, and TensorFlow copies. (Its kernels of assign_add and assign_sub for
// devices like this one are the CPU's, and crash.) A stream of the C API's is the driver's CUstream
// itself; with FAKE_GPU_STREAMS=1, TensorFlow tells it as that of an NVIDIA GPU (streams.cc).
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "memory.h"
#include "streams.h"
#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/tf_datatype.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/c/tf_tensor.h"

extern "C" {
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuCtxPushCurrent_v2(void* context);
int cuCtxPopCurrent_v2(void** context);
int cuStreamCreate(void** stream, unsigned flags);
int cuStreamSynchronize(void* stream);
int cuStreamWaitEvent(void* stream, void* event, unsigned flags);
int cuEventCreate(void** event, unsigned flags);
int cuEventRecord(void* event, void* stream);
int cuEventSynchronize(void* event);
int cuEventDestroy_v2(void* event);
}

struct SP_Event_st {
  void* handle;
};
struct SP_Timer_st {};

namespace {

class Current {
 public:
  Current() {
    void* context = nullptr;
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxPushCurrent_v2(context);
  }
  ~Current() {
    void* ignored = nullptr;
    cuCtxPopCurrent_v2(&ignored);
  }
};

void Check(int result, TF_Status* status) {
  if (result != 0) TF_SetStatus(status, TF_INTERNAL, "the fake GPU has failed");
}

// Runs `work` on the stream, after what is there.
void Enqueue(SP_Stream stream, std::function<void()> work) {
  auto* moved = new std::function<void()>(std::move(work));
  FakeLaunch(
      stream,
      [](void* argument) {
        auto* run = static_cast<std::function<void()>*>(argument);
        (*run)();
        delete run;
      },
      moved);
}

void CopyBytes(void* to, const void* from, uint64_t bytes) {
  std::memcpy(FakeBytes(to), FakeBytes(from), bytes);
}

// ---- memory -------------------------------------------------------------------------------------

void Allocate(const SP_Device*, uint64_t size, int64_t, SP_DeviceMemoryBase* memory) {
  memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  memory->opaque = FakeAllocate(size);
  memory->size = size;
}

void Deallocate(const SP_Device*, SP_DeviceMemoryBase* memory) {
  FakeFree(memory->opaque);
  memory->opaque = nullptr;
  memory->size = 0;
}

void* AllocateHost(const SP_Device*, uint64_t size) {
  constexpr uint64_t kAlign = 256;  // as TensorFlow 2.22 wants it
  return aligned_alloc(kAlign, (size + kAlign - 1) / kAlign * kAlign);
}
void DeallocateHost(const SP_Device*, void* memory) { free(memory); }
TF_Bool NoStats(const SP_Device*, SP_AllocatorStats*) { return 0; }
TF_Bool Usage(const SP_Device*, int64_t* available, int64_t* total) {
  *available = *total = int64_t{1} << 30;
  return 1;
}

// ---- streams and events -------------------------------------------------------------------------

void CreateStream(const SP_Device*, SP_Stream* stream, TF_Status* status) {
  Current current;
  void* made = nullptr;
  Check(cuStreamCreate(&made, 1), status);
  *stream = static_cast<SP_Stream>(made);
}
void DestroyStream(const SP_Device*, SP_Stream) {}

void CreateEvent(const SP_Device*, SP_Event* event, TF_Status* status) {
  Current current;
  *event = new SP_Event_st();
  Check(cuEventCreate(&(*event)->handle, 2), status);
}
void DestroyEvent(const SP_Device*, SP_Event event) {
  Current current;
  cuEventDestroy_v2(event->handle);
  delete event;
}
void RecordEvent(const SP_Device*, SP_Stream stream, SP_Event event, TF_Status* status) {
  Current current;
  Check(cuEventRecord(event->handle, stream), status);
}
void WaitForEvent(const SP_Device*, SP_Stream stream, SP_Event event, TF_Status* status) {
  Current current;
  Check(cuStreamWaitEvent(stream, event->handle, 0), status);
}
void StreamDependency(const SP_Device* device, SP_Stream dependent, SP_Stream other,
                      TF_Status* status) {
  SP_Event event = nullptr;
  CreateEvent(device, &event, status);
  RecordEvent(device, other, event, status);
  WaitForEvent(device, dependent, event, status);
  DestroyEvent(device, event);
}
void StreamStatus(const SP_Device*, SP_Stream, TF_Status* status) {
  TF_SetStatus(status, TF_OK, "");
}
SE_EventStatus EventStatus(const SP_Device*, SP_Event event) {
  Current current;
  cuEventSynchronize(event->handle);
  return SE_EVENT_COMPLETE;
}
void BlockForEvent(const SP_Device*, SP_Event event, TF_Status* status) {
  Current current;
  Check(cuEventSynchronize(event->handle), status);
}
void BlockUntilDone(const SP_Device*, SP_Stream stream, TF_Status* status) {
  Current current;
  Check(cuStreamSynchronize(stream), status);
}
void SynchronizeAll(const SP_Device*, TF_Status* status) {
  Current current;
  Check(FakeWaitForAll(), status);  // the driver counts those of the library
}
TF_Bool HostCallback(const SP_Device*, SP_Stream stream, SE_StatusCallbackFn call, void* argument) {
  Enqueue(stream, [=] {
    TF_Status* status = TF_NewStatus();
    call(argument, status);
    TF_DeleteStatus(status);
  });
  return 1;
}

// ---- copies -------------------------------------------------------------------------------------

void ToHost(const SP_Device*, SP_Stream stream, void* to, const SP_DeviceMemoryBase* from,
            uint64_t size, TF_Status*) {
  Enqueue(stream, [to, from = from->opaque, size] { CopyBytes(to, from, size); });
}
void FromHost(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to, const void* from,
              uint64_t size, TF_Status*) {
  Enqueue(stream, [to = to->opaque, from, size] { CopyBytes(to, from, size); });
}
void OnDevice(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to,
              const SP_DeviceMemoryBase* from, uint64_t size, TF_Status*) {
  Enqueue(stream, [to = to->opaque, from = from->opaque, size] { CopyBytes(to, from, size); });
}
void ToHostNow(const SP_Device*, void* to, const SP_DeviceMemoryBase* from, uint64_t size,
               TF_Status*) {
  CopyBytes(to, from->opaque, size);
}
void FromHostNow(const SP_Device*, SP_DeviceMemoryBase* to, const void* from, uint64_t size,
                 TF_Status*) {
  CopyBytes(to->opaque, from, size);
}
void OnDeviceNow(const SP_Device*, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from,
                 uint64_t size, TF_Status*) {
  CopyBytes(to->opaque, from->opaque, size);
}
void Zero(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* at, uint64_t size, TF_Status*) {
  Enqueue(stream, [at = at->opaque, size] { std::memset(FakeBytes(at), 0, size); });
}
void Set(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* at, uint8_t value, uint64_t size,
         TF_Status*) {
  Enqueue(stream, [=, at = at->opaque] { std::memset(FakeBytes(at), value, size); });
}
void Set32(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* at, uint32_t value,
           uint64_t size, TF_Status*) {
  Enqueue(stream, [=, at = at->opaque] {
    for (uint64_t i = 0; i + 4 <= size; i += 4) std::memcpy(FakeBytes(at) + i, &value, 4);
  });
}

// ---- the platform -------------------------------------------------------------------------------

// FAKE_GPU_COUNT=N: so many, in one memory.
void DeviceCount(const SP_Platform*, int* count, TF_Status*) {
  const char* text = std::getenv("FAKE_GPU_COUNT");
  *count = text == nullptr ? 1 : std::atoi(text);
}
void CreateDevice(const SP_Platform*, SE_CreateDeviceParams* params, TF_Status*) {
  params->device->struct_size = SP_DEVICE_STRUCT_SIZE;
  params->device->ordinal = params->ordinal;
  params->device->hardware_name = "fake GPU";
}
void DestroyDevice(const SP_Platform*, SP_Device*) {}
void CreateDeviceFns(const SP_Platform*, SE_CreateDeviceFnsParams* params, TF_Status*) {
  params->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
}
void DestroyDeviceFns(const SP_Platform*, SP_DeviceFns*) {}

void CreateExecutor(const SP_Platform*, SE_CreateStreamExecutorParams* params, TF_Status*) {
  SP_StreamExecutor* functions = params->stream_executor;
  functions->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  functions->allocate = Allocate;
  functions->deallocate = Deallocate;
  functions->host_memory_allocate = AllocateHost;
  functions->host_memory_deallocate = DeallocateHost;
  functions->get_allocator_stats = NoStats;
  functions->device_memory_usage = Usage;
  functions->create_stream = CreateStream;
  functions->destroy_stream = DestroyStream;
  functions->create_stream_dependency = StreamDependency;
  functions->get_stream_status = StreamStatus;
  functions->create_event = CreateEvent;
  functions->destroy_event = DestroyEvent;
  functions->get_event_status = EventStatus;
  functions->record_event = RecordEvent;
  functions->wait_for_event = WaitForEvent;
  functions->create_timer = [](const SP_Device*, SP_Timer* timer, TF_Status*) {
    *timer = new SP_Timer_st();
  };
  functions->destroy_timer = [](const SP_Device*, SP_Timer timer) { delete timer; };
  functions->start_timer = [](const SP_Device*, SP_Stream, SP_Timer, TF_Status*) {};
  functions->stop_timer = [](const SP_Device*, SP_Stream, SP_Timer, TF_Status*) {};
  functions->memcpy_dtoh = ToHost;
  functions->memcpy_htod = FromHost;
  functions->memcpy_dtod = OnDevice;
  functions->sync_memcpy_dtoh = ToHostNow;
  functions->sync_memcpy_htod = FromHostNow;
  functions->sync_memcpy_dtod = OnDeviceNow;
  functions->block_host_for_event = BlockForEvent;
  functions->block_host_until_done = BlockUntilDone;
  functions->synchronize_all_activity = SynchronizeAll;
  functions->mem_zero = Zero;
  functions->memset = Set;
  functions->memset32 = Set32;
  functions->host_callback = HostCallback;
}
void DestroyExecutor(const SP_Platform*, SP_StreamExecutor*) {}
void CreateTimerFns(const SP_Platform*, SP_TimerFns* timer, TF_Status*) {
  timer->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
  timer->nanoseconds = [](SP_Timer) -> uint64_t { return 0; };
}
void DestroyTimerFns(const SP_Platform*, SP_TimerFns*) {}
void DestroyPlatform(SP_Platform*) {}
void DestroyPlatformFns(SP_PlatformFns*) {}

// ---- y = x * x ----------------------------------------------------------------------------------

constexpr useconds_t kMicroseconds = 3000;  // that the kernel takes

void ComputeSquare(void*, TF_OpKernelContext* context) {
  TF_Status* status = TF_NewStatus();
  TF_Tensor *in = nullptr, *out = nullptr;
  TF_GetInput(context, 0, &in, status);
  std::vector<int64_t> dims;
  for (int i = 0; i < TF_NumDims(in); ++i) dims.push_back(TF_Dim(in, i));
  out = TF_AllocateOutput(context, 0, TF_FLOAT, dims.data(), TF_NumDims(in), TF_TensorByteSize(in),
                          status);
  SP_Stream stream = TF_GetStream(context, status);
  if (TF_GetCode(status) == TF_OK) {
    Enqueue(stream,
            [from = TF_TensorData(in), to = TF_TensorData(out), count = TF_TensorElementCount(in)] {
              usleep(kMicroseconds);
              auto* x = reinterpret_cast<float*>(FakeBytes(from));
              auto* y = reinterpret_cast<float*>(FakeBytes(to));
              for (int64_t i = 0; i < count; ++i) y[i] = x[i] * x[i];
            });
  } else {
    TF_OpKernelContext_Failure(context, status);
  }
  TF_DeleteTensor(in);
  TF_DeleteTensor(out);
  TF_DeleteStatus(status);
}

}  // namespace

extern "C" void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status* status) {
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = "FAKE";
  params->platform->type = "GPU";
  params->platform->use_bfc_allocator = 1;
  SP_PlatformFns* functions = params->platform_fns;
  functions->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  functions->get_device_count = DeviceCount;
  functions->create_device = CreateDevice;
  functions->destroy_device = DestroyDevice;
  functions->create_device_fns = CreateDeviceFns;
  functions->destroy_device_fns = DestroyDeviceFns;
  functions->create_stream_executor = CreateExecutor;
  functions->destroy_stream_executor = DestroyExecutor;
  functions->create_timer_fns = CreateTimerFns;
  functions->destroy_timer_fns = DestroyTimerFns;
  params->destroy_platform = DestroyPlatform;
  params->destroy_platform_fns = DestroyPlatformFns;
  const char* streams = std::getenv("FAKE_GPU_STREAMS");
  bool fine = streams == nullptr || TellStreams();
  TF_SetStatus(status, fine ? TF_OK : TF_INTERNAL, fine ? "" : "no function tells streams");
}

extern "C" void TF_InitKernel() {
  TF_Status* status = TF_NewStatus();
  TF_KernelBuilder* builder = TF_NewKernelBuilder(
      "Square", "GPU", [](TF_OpKernelConstruction*) -> void* { return nullptr; }, ComputeSquare,
      [](void*) {});
  TF_KernelBuilder_TypeConstraint(builder, "T", TF_FLOAT, status);
  TF_RegisterKernelBuilder("FakeSquare", builder, status);
  TF_DeleteStatus(status);
}
