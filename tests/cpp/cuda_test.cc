// Collectives on a GPU's tensors through CUDA's driver, here the one in ../fake_cuda: streams that
// are behind, the C API, and what a driver may refuse. device_test.cc runs all kinds of
// collectives.
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "capi/smddp.h"
#include "capi/to_request.h"
#include "check.h"
#include "engine_job.h"
#include "fake_device.h"
#include "kernels/cuda/bundle.h"
#include "transport/cuda/cuda_device.h"
#include "transport/cuda/pack_kernels.h"

extern "C" {
int cuInit(unsigned flags);
int cuCtxPushCurrent_v2(void* context);
int cuCtxPopCurrent_v2(void** context);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuStreamCreate(void** stream, unsigned flags);
}

namespace {

using namespace smddp_test;

// Sets an environment variable of the fake driver for a scope.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Setting() {
    ::unsetenv(name_);
    FakeRepair();
  }

 private:
  const char* name_;
};

// What TensorFlow would have: a stream in the device's primary context.
void* NewStream(int device = 0) {
  void *context = nullptr, *stream = nullptr;
  cuInit(0);
  cuDevicePrimaryCtxRetain(&context, device);
  cuCtxPushCurrent_v2(context);
  EXPECT_EQ(cuStreamCreate(&stream, 1), 0);
  cuCtxPopCurrent_v2(&context);
  return stream;
}

// A "kernel" that fills a tensor.
struct Fill {
  float* at;
  size_t count;
  float value;
  static void Run(void* self) {
    auto* fill = static_cast<Fill*>(self);
    std::fill_n(fill->at, fill->count, fill->value);
  }
};

// An allreduce of one tensor as the C API takes it.
struct CApiRequest {
  CApiRequest(const void* in, void* out, const int64_t* count, void* stream) {
    tensor = {in, out, 1, count};
    request.kind = SMDDP_ALLREDUCE;
    request.dtype = SMDDP_FLOAT32;
    request.op = SMDDP_SUM;
    request.prescale = request.postscale = 1;
    request.name = "x";
    request.num_tensors = 1;
    request.tensors = &tensor;
    request.memory = SMDDP_CUDA;
    request.stream = stream;
  }
  smddp_tensor tensor = {};
  smddp_request request = {};
};

const Topology& Alone() {
  static const Topology topology = Topology::FromKeys(0, std::vector<int>{0});
  return topology;
}

}  // namespace

TEST(CudaTensorsAreReadWhenTheirStreamHasComputedThem) {
  Setting delay("FAKE_CUDA_DELAY", "300");
  constexpr int kRanks = 3, kRounds = 150;
  EXPECT(SMDDP_EVERY_STREAM == kEveryStream);
  Wires wires(kRanks, 1);
  RunRanks(kRanks, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    auto everybody = Everybody(*communicator);
    void* stream = NewStream();
    for (int round = 0; round < kRounds; ++round) {
      int64_t count = 1 + (round * 977) % 20000;
      DeviceMemory in(count * sizeof(float)), out(count * sizeof(float));
      Fill fill{reinterpret_cast<float*>(in.bytes()), static_cast<size_t>(count),
                static_cast<float>(round + rank)};
      EXPECT_EQ(FakeLaunch(stream, Fill::Run, &fill), 0);
      bool wait_for_all = round % 5 == rank;
      CApiRequest api(in.address(), round % 2 == 0 ? in.address() : out.address(), &count,
                      wait_for_all ? SMDDP_EVERY_STREAM : stream);
      Request request;
      Status status = ToRequest(api.request, everybody->topology(), Parts::kKnown, &request);
      ASSERT(status.ok(), status.message());
      status = everybody->Run(std::move(request));
      ASSERT(status.ok(), status.message());
      auto* got = reinterpret_cast<float*>(round % 2 == 0 ? in.bytes() : out.bytes());
      float want = static_cast<float>(kRanks * round + kRanks * (kRanks - 1) / 2);
      EXPECT(got[0] == want && got[count - 1] == want, "round " + std::to_string(round));
    }
    communicator->Leave(false);
  });
}

TEST(ABrokenGpuIsAnErrorOnAllRanks) {
  for (const char* copy : {"1", "2", "5"}) {  // while copying in, and out
    Setting fail("FAKE_CUDA_FAIL", copy);
    Wires wires(2, 1);
    RunRanks(2, [&](int rank) {
      auto communicator = Connect(&wires, rank);
      auto everybody = Everybody(*communicator);
      DeviceMemory memory(400);
      CudaDevice* device = nullptr;
      Status status;
      for (int round = 0; round < 4 && status.ok(); ++round) {
        status = CudaDevice::Find(memory.address(), &device);
        Request request = Sum(static_cast<float*>(memory.address()), "x", 100);
        if (status.ok()) request.PlaceOn(device, nullptr);
        if (status.ok()) status = everybody->Run(std::move(request));
      }
      bool told = status.message().find("illegal memory access") != std::string::npos;
      EXPECT(!status.ok() && told, status.message());
      communicator->Leave(true);
    });
  }
}

TEST(NoPinnedMemoryIsAnError) {
  Setting none("FAKE_CUDA_NO_HOST", "1");
  InprocJob job(1, 1, kChunk);
  DeviceMemory memory(400);
  CudaDevice* device = nullptr;
  ASSERT(CudaDevice::Find(memory.address(), &device).ok());
  Request request = Sum(static_cast<float*>(memory.address()), "x", 100);
  request.PlaceOn(device, nullptr);
  Status status = job.Run(0, request);
  bool told = status.message().find("no host memory to copy from cuda memory") != std::string::npos;
  EXPECT(!status.ok() && told, status.message());
}

TEST(MemoryThatIsNotWhatTheRequestSaysIsAnError) {
  int64_t count = 100;
  std::vector<float> host(100);
  CApiRequest on_host(host.data(), host.data(), &count, SMDDP_EVERY_STREAM);
  Request request;
  Status status = ToRequest(on_host.request, Alone(), Parts::kKnown, &request);
  EXPECT(!status.ok() && status.message().find("CUDA") != std::string::npos, status.message());

  on_host.request.memory = 7;
  Request other;
  status = ToRequest(on_host.request, Alone(), Parts::kKnown, &other);
  EXPECT(status.code() == Code::kUsage, status.message());
  EXPECT(status.message().find("unknown memory 7") != std::string::npos, status.message());
}

TEST(ARequestOfEmptyTensorsNeedsNoAddress) {
  int64_t count = 0;
  CApiRequest empty(nullptr, nullptr, &count, SMDDP_EVERY_STREAM);
  Request request;
  Status status = ToRequest(empty.request, Alone(), Parts::kKnown, &request);
  ASSERT(status.ok(), status.message());
  InprocJob job(1, 1, kChunk);
  EXPECT(job.Run(0, request).ok());
}

TEST(EmptyTensorsMayBeOfAnyStream) {
  DeviceMemory found(4, 3);
  CudaDevice* last = nullptr;
  ASSERT(CudaDevice::Find(found.address(), &last).ok());
  void* stream = NewStream(2);
  int64_t none = 0, one = 1;
  CApiRequest empty(nullptr, nullptr, &none, stream);
  Request request, wrong;
  Status status = ToRequest(empty.request, Alone(), Parts::kKnown, &request);
  // XLA may still use the memory that is written when the call has ended.
  EXPECT(status.ok() && request.ready != nullptr, status.message());
  CudaDevice* of_stream = nullptr;
  ASSERT(CudaDevice::Find(nullptr, &of_stream, stream).ok());
  EXPECT(request.device == of_stream && of_stream != last, "not the GPU of the stream");
  DeviceMemory second(4, 2);
  ASSERT(CudaDevice::Find(second.address(), &last).ok());
  EXPECT(last == of_stream);
  CApiRequest full(found.address(), found.address(), &one, stream);
  status = ToRequest(full.request, Alone(), Parts::kKnown, &wrong);
  EXPECT(!status.ok(), "a stream of GPU 2 cannot say when a tensor of GPU 3 is computed");
}

TEST(ARankWithoutRowsIsOnTheGpuOfItsOutput) {
  int64_t none = 0;
  CApiRequest empty(nullptr, nullptr, &none, SMDDP_EVERY_STREAM);
  empty.request.kind = SMDDP_ALLGATHER;
  Request request;
  Status status = ToRequest(empty.request, Alone(), Parts::kGathered, &request);
  ASSERT(status.ok(), status.message());
  DeviceMemory output(3 * sizeof(float), 2), other(4, 1);
  CudaDevice *device = nullptr, *last = nullptr;
  ASSERT(CudaDevice::Find(output.address(), &device).ok());
  ASSERT(CudaDevice::Find(other.address(), &last).ok() && last != device);
  status = PlaceOutput({0, 3}, output.address(), SMDDP_EVERY_STREAM, &request);
  EXPECT(status.ok() && request.device == device, status.message());
  // The stream is that GPU's, whichever was found last.
  void* stream = NewStream(2);
  empty.request.stream = stream;
  Request another;
  status = ToRequest(empty.request, Alone(), Parts::kGathered, &another);
  ASSERT(status.ok(), status.message());
  status = PlaceOutput({0, 0}, nullptr, stream, &another);
  EXPECT(status.ok() && another.device != nullptr, status.message());
  status = PlaceOutput({0, 3}, output.address(), stream, &another);
  EXPECT(status.ok() && another.device == device && another.ready != nullptr, status.message());
  // Without any memory: the GPU that was found last.
  ASSERT(CudaDevice::Find(nullptr, &last).ok());
  EXPECT(last == device);
  ASSERT(CudaDevice::Find(other.address(), &last).ok());
  EXPECT(CudaDevice::Find(nullptr, &device).ok() && device == last);
}

namespace {

// A bundle of code for sm_90 and of PTX; the code's ELF header says that it is for `gpu`.
struct Bundled {
  BundleHeader header{};
  BundleEntry entries[2] = {{90, 0, 0, 0}, {70, 1, 0, 0}};
  unsigned char elf[64] = {0x7f, 'E', 'L', 'F'};
  char ptx[8] = "//";

  Bundled(uint32_t gpu, uint64_t count) {
    std::memcpy(header.magic, kBundleMagic, sizeof kBundleMagic);
    header.entries = count;
    entries[0].begin = offsetof(Bundled, elf);
    entries[1].begin = offsetof(Bundled, ptx);
    elf[18] = 190;  // the machine, and the flags
    uint32_t flags = gpu << 16 | 5 << 8 | gpu;
    std::memcpy(elf + 48, &flags, sizeof flags);
  }
};

}  // namespace

TEST(CodeThatTheGpuCannotRunIsNotLoaded) {
  static const Bundled right(90, 1), wrong(80, 1), with_ptx(80, 2), older(90, 2);
  DeviceMemory memory(4, 5), other(4, 6);
  CudaDevice *device = nullptr, *pascal = nullptr;
  ASSERT(CudaDevice::Find(memory.address(), &device).ok());
  ASSERT(CudaDevice::Find(other.address(), &pascal).ok());
  std::string why;
  EXPECT(PackKernels::Find(device, &right, &why) != nullptr, why);
  EXPECT(PackKernels::Find(device, &with_ptx, &why) != nullptr, why);
  EXPECT(PackKernels::Find(device, &wrong, &why) == nullptr);
  EXPECT(why.find("cuModuleLoadData") != std::string::npos, why);
  Setting capability("FAKE_CUDA_CAPABILITY", "61");
  EXPECT(PackKernels::Find(pascal, &older, &why) == nullptr);
  EXPECT(why.find("no code for its compute capability, 6.1") != std::string::npos, why);
}
