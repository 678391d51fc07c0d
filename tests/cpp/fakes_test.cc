// The fakes of CUDA's driver and of NCCL refuse what the real ones do, and wait where those do: the
// other tests rely on that to notice what a GPU would.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "kernels/cuda/pack.h"
#include "nccl_job.h"
#include "transport/cuda/driver.h"
#include "transport/nccl/library.h"

extern "C" {
int cuCtxPushCurrent_v2(void* context);
int cuDevicePrimaryCtxRetain(void** context, int device);
}

namespace {

using namespace smddp_test;

constexpr CudaResult kInvalidValue = 1, kInvalidContext = 201, kInvalidHandle = 400;

const CudaDriver& Driver() {
  std::string why;
  const CudaDriver* driver = CudaDriver::Open(&why);
  EXPECT(driver != nullptr, why);
  return *driver;
}

std::shared_ptr<const NcclLibrary> Library() {
  std::string why;
  auto library = NcclLibrary::Open("", "", &why);
  EXPECT(library != nullptr, why);
  return library;
}

void* StreamOf(int gpu) {
  void* stream = nullptr;
  EXPECT(Gpu(gpu)->NewStream(&stream).ok());
  return stream;
}

// A kernel that ends after a while.
struct SlowKernel {
  std::atomic<bool> ended{false};
  void LaunchIn(void* stream) {
    auto run = [](void* self) {
      ::usleep(100000);
      static_cast<SlowKernel*>(self)->ended = true;
    };
    EXPECT_EQ(FakeLaunch(stream, run, this), 0);
  }
};

// A communicator of one rank, or of several that are threads, each with a GPU.
struct Comm {
  Comm(std::shared_ptr<const NcclLibrary> of, const NcclUniqueId& id, int gpu, int size, int rank)
      : library(std::move(of)), current(Gpu(gpu)) {
    NcclConfig config;
    config.blocking = 0;
    made = library->CommInitRankConfig(&comm, size, id, rank, &config);
    EXPECT_EQ(made, kNcclInProgress);
  }
  ~Comm() { library->CommAbort(comm); }
  NcclResult Settled() const {
    NcclResult result = kNcclInProgress;
    while (result == kNcclInProgress) {
      ::usleep(100);
      EXPECT_EQ(library->CommGetAsyncError(comm, &result), kNcclSuccess);
    }
    return result;
  }
  const std::shared_ptr<const NcclLibrary> library;
  const CudaDevice::Current current;
  void* comm = nullptr;
  NcclResult made = kNcclSuccess;
};

NcclUniqueId NewId(const NcclLibrary& library) {
  NcclUniqueId id{};
  EXPECT_EQ(library.GetUniqueId(&id), kNcclSuccess);
  return id;
}

}  // namespace

TEST(TheFakeDriverNeedsAContext) {
  const CudaDriver& driver = Driver();
  void *made = nullptr, *stream = StreamOf(0);
  EXPECT_EQ(driver.StreamCreate(&made, 1), kInvalidContext);
  EXPECT_EQ(driver.StreamSynchronize(stream), kInvalidContext);
  EXPECT_EQ(driver.EventCreate(&made, 2), kInvalidContext);
  EXPECT_EQ(driver.EventSynchronize(nullptr), kInvalidContext);
  EXPECT_EQ(driver.EventDestroy(nullptr), kInvalidContext);
  EXPECT_EQ(driver.MemAlloc(&made, 1), kInvalidContext);
  EXPECT_EQ(driver.MemFree(nullptr), kInvalidContext);
  EXPECT_EQ(driver.MemHostAlloc(&made, 1, 1), kInvalidContext);
  EXPECT_EQ(driver.MemFreeHost(nullptr), kInvalidContext);
  EXPECT_EQ(driver.ModuleLoadData(&made, kKernels), kInvalidContext);
  EXPECT_EQ(driver.ModuleGetFunction(&made, nullptr, "smddp_pack_bytes"), kInvalidContext);
}

TEST(TheFakeDriverTakesNoSizesAndFlagsThatTheRealOneDoesNot) {
  const CudaDriver& driver = Driver();
  CudaDevice::Current current(Gpu(0));
  void* made = nullptr;
  EXPECT_EQ(driver.Init(1), kInvalidValue);
  EXPECT_EQ(driver.StreamCreate(&made, 2), kInvalidValue);
  EXPECT_EQ(driver.EventCreate(&made, 8), kInvalidValue);
  EXPECT_EQ(driver.MemAlloc(&made, 0), kInvalidValue);
  EXPECT_EQ(driver.MemHostAlloc(&made, 0, 1), kInvalidValue);
  EXPECT_EQ(driver.MemHostAlloc(&made, 1, 8), kInvalidValue);
  EXPECT_EQ(driver.MemFreeHost(&made), kInvalidValue);
  ASSERT(driver.MemAlloc(&made, 100) == kCudaSuccess);
  EXPECT_EQ(driver.MemFree(static_cast<char*>(made) + 1), kInvalidValue);
  EXPECT_EQ(driver.MemFree(made), kCudaSuccess);
  EXPECT_EQ(driver.MemFree(made), kInvalidValue);
}

TEST(TheFakeDriverTellsContextsApart) {
  const CudaDriver& driver = Driver();
  void *here = StreamOf(0), *there = StreamOf(1), *module = nullptr, *function = nullptr;
  DeviceMemory memory(64);
  char host[64] = {};
  PackArgs args{};
  void* parameters[] = {&args};
  auto launch = [&](void* stream) {
    return driver.LaunchKernel(function, 1, 1, 1, kPackThreads, 1, 1, 0, stream, parameters,
                               nullptr);
  };
  {
    CudaDevice::Current current(Gpu(0));
    ASSERT(driver.ModuleLoadData(&module, kKernels) == kCudaSuccess);
    ASSERT(driver.ModuleGetFunction(&function, module, "smddp_pack_bytes") == kCudaSuccess);
    EXPECT_EQ(launch(here), kCudaSuccess);
    EXPECT_EQ(launch(there), kInvalidHandle);
    EXPECT_EQ(driver.MemcpyDtoHAsync(host, memory.address(), 64, there), kInvalidHandle);
    EXPECT_EQ(driver.MemcpyDtoHAsync(host, memory.address(), 64, here), kCudaSuccess);
    EXPECT_EQ(driver.StreamSynchronize(here), kCudaSuccess);
  }
  CudaDevice::Current other(Gpu(1));
  EXPECT_EQ(launch(here), kInvalidHandle);
  EXPECT_EQ(launch(there), kInvalidHandle);
}

TEST(TheFakeDriverWaitsForItsGpuBeforeItFreesMemory) {
  const CudaDriver& driver = Driver();
  void *stream = StreamOf(0), *of_gpu = nullptr, *pinned = nullptr;
  CudaDevice::Current current(Gpu(0));
  ASSERT(driver.MemAlloc(&of_gpu, 100) == kCudaSuccess);
  ASSERT(driver.MemHostAlloc(&pinned, 100, 1) == kCudaSuccess);
  SlowKernel first, second, third;
  first.LaunchIn(stream);
  EXPECT_EQ(driver.MemFree(of_gpu), kCudaSuccess);
  EXPECT(first.ended);
  second.LaunchIn(stream);
  EXPECT_EQ(driver.MemFreeHost(pinned), kCudaSuccess);
  EXPECT(second.ended);
  Setting waits("FAKE_CUDA_WAITS", "1");
  SlowKernel fourth;
  fourth.LaunchIn(stream);
  ASSERT(driver.MemAlloc(&of_gpu, 100) == kCudaSuccess);
  EXPECT(fourth.ended);
  EXPECT_EQ(driver.MemFree(of_gpu), kCudaSuccess);
  // Another GPU's work is its own.
  third.LaunchIn(StreamOf(1));
  EXPECT_EQ(driver.CtxSynchronize(), kCudaSuccess);
  EXPECT(!third.ended);
  while (!third.ended) ::usleep(1000);
}

TEST(TheFakeDriverEndsAProcessWhoseThreadsLeaveContexts) {
  void* context = nullptr;
  Gpu(0);
  ASSERT(cuDevicePrimaryCtxRetain(&context, 0) == kCudaSuccess);
  pid_t child = ::fork();
  if (child == 0) {
    ::close(STDERR_FILENO);
    std::thread([context] { cuCtxPushCurrent_v2(context); }).join();
    ::_exit(0);
  }
  int status = 0;
  ASSERT(child > 0 && ::waitpid(child, &status, 0) == child);
#ifdef __SANITIZE_THREAD__
  EXPECT(status != 0);  // abort() in the end of a thread ends a forked child otherwise there
#else
  EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
#endif
}

TEST(TheFakeNcclNeedsAGpuForEachRank) {
  auto library = Library();
  NcclUniqueId id = NewId(*library), same = NewId(*library);
  RunRanks(2, [&](int rank) {
    Comm apart(library, id, rank, 2, rank);
    EXPECT_EQ(apart.Settled(), kNcclSuccess);
    Comm together(library, same, 3, 2, rank);
    EXPECT_EQ(together.Settled(), kNcclInvalidUsage);
  });
}

TEST(TheFakeNcclKnowsTheConfigurationsSize) {
  auto library = Library();
  CudaDevice::Current current(Gpu(0));
  NcclConfig config;
  config.blocking = 0;
  config.size -= 8;
  void* comm = nullptr;
  EXPECT_EQ(library->CommInitRankConfig(&comm, 1, NewId(*library), 0, &config),
            kNcclInvalidArgument);
}

TEST(TheFakeNcclDoesNothingOfAGroupWithABadCall) {
  auto library = Library();
  EXPECT_EQ(library->GroupEnd(), kNcclInvalidUsage);
  DeviceMemory memory(64);
  void *stream = StreamOf(0), *far = StreamOf(1), *at = memory.address();
  Comm one(library, NewId(*library), 0, 1, 0);
  EXPECT_EQ(one.Settled(), kNcclSuccess);
  auto reduce = [&](void* in) {
    return library->AllReduce(at, at, 4, kNcclFloat32, kNcclSum, one.comm, in);
  };
  for (bool bad : {true, false}) {
    EXPECT_EQ(library->GroupStart(), kNcclSuccess);
    EXPECT_EQ(reduce(stream), kNcclSuccess);
    if (bad) EXPECT_EQ(reduce(far), kNcclInvalidArgument);
    EXPECT_EQ(library->GroupEnd(), bad ? kNcclInvalidArgument : kNcclInProgress);
    EXPECT_EQ(one.Settled(), kNcclSuccess);
  }
}

TEST(TheFakeNcclKeepsAGroupUntilTheNextCall) {
  auto library = Library();
  DeviceMemory memory(64);
  void *stream = StreamOf(0), *at = memory.address();
  for (bool keeps : {true, false}) {
    Setting of("FAKE_NCCL_VERSION", keeps ? "22304" : "22705");
    Comm one(library, NewId(*library), 0, 1, 0);
    EXPECT_EQ(one.Settled(), kNcclSuccess);
    EXPECT_EQ(library->GroupStart(), kNcclSuccess);
    EXPECT_EQ(library->GroupEnd(), kNcclSuccess);
    EXPECT_EQ(library->GroupStart(), kNcclSuccess);
    EXPECT_EQ(library->AllReduce(at, at, 4, kNcclFloat32, kNcclSum, one.comm, stream),
              kNcclSuccess);
    EXPECT_EQ(library->GroupEnd(), kNcclInProgress);
    EXPECT_EQ(one.Settled(), kNcclSuccess);
    EXPECT_EQ(library->GroupStart(), kNcclSuccess);
    EXPECT_EQ(library->GroupEnd() == kNcclSuccess, !keeps);
  }
}

TEST(TheFakeNcclsAbortWaitsForItsKernels) {
  auto library = Library();
  DeviceMemory memory(64);
  void *stream = StreamOf(0), *at = memory.address();
  SlowKernel before;
  {
    Comm one(library, NewId(*library), 0, 1, 0);
    EXPECT_EQ(one.Settled(), kNcclSuccess);
    before.LaunchIn(stream);
    EXPECT_EQ(library->GroupStart(), kNcclSuccess);
    EXPECT_EQ(library->AllReduce(at, at, 4, kNcclFloat32, kNcclSum, one.comm, stream),
              kNcclSuccess);
    EXPECT_EQ(library->GroupEnd(), kNcclInProgress);
  }
  EXPECT(before.ended);
}
