// A libnccl.so.2 without a GPU, on the driver in ../fake_cuda: its "kernels" run on that driver's
// streams and meet the other ranks', threads or processes, in a file that they map. As with the
// real one, calls of a non-blocking communicator take effect late, nothing may be called meanwhile,
// and a kernel waits for its peers for ever unless its communicator is aborted, which waits for the
// kernels; no two ranks may have one GPU but on hosts of different NCCL_HOSTID, a group with a bad
// call does nothing, and streams are the communicator's GPU's. Versions 2.19 to 2.26 launch a
// thread's last group again if an empty one ends before a call with the communicator, and crash.
//
// FAKE_NCCL_VERSION=N       the version that it has
// FAKE_NCCL_DELAY=N         what is done in the background takes up to N microseconds longer
// FAKE_NCCL_FAIL_INIT=R     rank R cannot connect
// FAKE_NCCL_HANG_INIT=R     rank R never ends connecting
// FAKE_NCCL_HANG=R          the kernels of rank R do nothing
// FAKE_NCCL_FAIL=R          the kernels of rank R end in an asynchronous error
#include "nccl.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "arithmetic.h"
#include "comm.h"
#include "core/detached_thread.h"
#include "memory.h"

extern "C" int cuCtxGetCurrent(void** context);
extern "C" int cuCtxGetDevice(int* device);
extern "C" int cuDeviceGetUuid(void* uuid, int device);

namespace {

using namespace fake_nccl;

constexpr int kFirstOwnOp = 5;

struct UniqueId {
  char internal[128];
};
// As of 2.18; with the member that 2.26 reads where others have padding.
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char* net_name;
  int split_share, traffic_class;
};

std::mutex mutex;  // protects the two below
std::map<std::string, int>& Calls() {
  static auto* calls = new std::map<std::string, int>();
  return *calls;
}

std::map<void*, Handle>& Comms() {
  static auto* comms = new std::map<void*, Handle>();
  return *comms;
}

// ---- groups of calls ----------------------------------------------------------------------------

struct Enqueued {
  Call* call;
  void* stream;
};
struct Kernel {
  void (*run)(void* argument);
  void* argument;
};
thread_local int depth = 0;
thread_local int group_error = kSuccess;
thread_local std::vector<Enqueued> group;
thread_local bool kept = false;  // the last group, until a call with its communicator

bool SharesItsGpu(const Comm& comm) {
  for (int r = 0; r < comm.size; ++r) {
    bool same = std::memcmp(&comm.meeting->members[r].home, &comm.home, sizeof comm.home) == 0;
    if (same && r != comm.rank) return true;
  }
  return false;
}

void RunThread(std::function<void()> body) {
  smddp::RunDetached(std::move(body), [](const smddp::Status&) { std::abort(); });
}

void Connect(const Handle& comm) {
  Dawdle();
  auto hangs = [&] { return Setting("FAKE_NCCL_HANG_INIT", -1) == comm->rank; };
  if (Setting("FAKE_NCCL_FAIL_INIT", -1) == comm->rank) {
    comm->state = kSystemError;
    return;
  }
  int file = open(comm->path.c_str(), O_RDWR | O_CREAT, 0600);
  bool grown = file >= 0 && ftruncate(file, sizeof(Meeting)) == 0;
  void* memory = !grown
                     ? MAP_FAILED
                     : mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  if (memory == MAP_FAILED) {
    comm->state = kSystemError;
    return;
  }
  comm->meeting = static_cast<Meeting*>(memory);
  comm->meeting->members[comm->rank].home = comm->home;
  bool all = Await(*comm, [&] { return !hangs(); });
  if (all) ++comm->meeting->arrived;
  all = all && Await(*comm, [&] { return comm->meeting->arrived == comm->size; });
  if (all) unlink(comm->path.c_str());
  comm->state = !all ? kInternalError : SharesItsGpu(*comm) ? kInvalidUsage : kSuccess;
}

}  // namespace

namespace fake_nccl {

void Count(const char* what) {
  std::lock_guard<std::mutex> lock(mutex);
  ++Calls()[what];
}

Handle Find(void* comm) {
  std::lock_guard<std::mutex> lock(mutex);
  auto it = Comms().find(comm);
  return it == Comms().end() ? nullptr : it->second;
}

bool HasContext() {
  void* context = nullptr;
  return cuCtxGetCurrent(&context) == 0 && context != nullptr;
}

int Version() { return static_cast<int>(Setting("FAKE_NCCL_VERSION", 23203)); }

}  // namespace fake_nccl

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int FakeNcclCalls(const char* function) {
  std::lock_guard<std::mutex> lock(mutex);
  return Calls()[function];
}

EXPORT int ncclGetVersion(int* version) {
  *version = Version();
  return kSuccess;
}

EXPORT const char* ncclGetErrorString(int result) {
  return result == kSystemError    ? "unhandled system error"
         : result == kInvalidUsage ? "invalid usage"
                                   : "a fake error";
}

EXPORT const char* ncclGetLastError(void*) { return ""; }

EXPORT int ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> made{0};
  const char* folder = std::getenv("TMPDIR");
  std::snprintf(id->internal, sizeof id->internal, "%s/fake_nccl.%d.%d",
                folder != nullptr ? folder : "/tmp", getpid(), made++);
  return kSuccess;
}

EXPORT int ncclCommInitRankConfig(void** comm, int size, UniqueId id, int rank, Config* config) {
  Count("ncclCommInitRankConfig");
  constexpr unsigned kMagic = 0xcafebeef;
  constexpr unsigned kLeast = 21800;
  int gpu = 0;
  if (config->size != sizeof(Config) || config->magic != kMagic || config->version < kLeast ||
      config->blocking != 0 || config->traffic_class != INT_MIN || size > kMostRanks ||
      rank >= size || cuCtxGetDevice(&gpu) != 0) {
    return kInvalidArgument;
  }
  auto made = std::make_shared<Comm>();
  cuCtxGetCurrent(&made->context);
  cuDeviceGetUuid(made->home.gpu, gpu);
  const char* host = std::getenv("NCCL_HOSTID");
  if (host != nullptr) made->home.host = std::hash<std::string>()(host);
  made->rank = rank;
  made->size = size;
  made->path = id.internal;
  *comm = made.get();
  {
    std::lock_guard<std::mutex> lock(mutex);
    Comms()[made.get()] = made;
  }
  RunThread([made] { Connect(made); });
  return kInProgress;
}

EXPORT int ncclCommGetAsyncError(void* handle, int* error) {
  Handle comm = Find(handle);
  if (comm == nullptr) return kInvalidArgument;
  *error = comm->error != kSuccess ? comm->error : comm->state;
  return kSuccess;
}

EXPORT int ncclCommFinalize(void* handle) {
  Handle comm = Find(handle);
  if (comm == nullptr || comm->state != kSuccess) return kInvalidArgument;
  kept = false;
  comm->state = kInProgress;
  RunThread([comm] {
    Dawdle();
    bool ended = Await(*comm, [&] { return comm->kernels == 0; });
    comm->state = ended ? kSuccess : kInternalError;
  });
  return kInProgress;
}

EXPORT int ncclCommDestroy(void* handle) {
  Count("ncclCommDestroy");
  Handle comm = Find(handle);
  if (comm == nullptr || comm->state == kInProgress) return kInvalidArgument;
  std::lock_guard<std::mutex> lock(mutex);
  return Comms().erase(handle) == 1 ? kSuccess : kInvalidArgument;
}

EXPORT int ncclCommAbort(void* handle) {
  Count("ncclCommAbort");
  Handle comm = Find(handle);
  if (comm == nullptr) return kInvalidArgument;
  kept = false;
  comm->aborted = true;
  while (comm->kernels > 0) usleep(kPoll);
  unlink(comm->path.c_str());
  std::lock_guard<std::mutex> lock(mutex);
  Comms().erase(handle);
  return kSuccess;
}

EXPORT int ncclRedOpCreatePreMulSum(int* op, void* scalar, int dtype, int residence, void* handle) {
  Handle comm = Find(handle);
  if (comm == nullptr || residence != 1 || comm->state != kSuccess) return kInvalidArgument;
  kept = false;
  double value = 0;
  WithDType(dtype, [&](auto kind) {
    std::memcpy(&kind, scalar, sizeof kind);
    value = static_cast<double>(Value(kind));
  });
  *op = kFirstOwnOp + static_cast<int>(comm->ops.size());
  comm->ops.push_back({value, dtype, false});
  return kSuccess;
}

EXPORT int ncclRedOpDestroy(int op, void* handle) {
  Handle comm = Find(handle);
  size_t index = static_cast<size_t>(op - kFirstOwnOp);
  if (comm == nullptr || index >= comm->ops.size() || comm->ops[index].destroyed) {
    return kInvalidArgument;
  }
  comm->ops[index].destroyed = true;
  return kSuccess;
}

EXPORT int ncclGroupStart() {
  ++depth;
  return kSuccess;
}

namespace {

// Whether an array is in the memory of a GPU, to its last element; what is not accessed may be
// anywhere.
bool IsOnDevice(const void* array, uint64_t count, int dtype) {
  uint64_t bytes = 0;
  WithDType(dtype, [&](auto value) { bytes = count * sizeof value; });
  const char* first = static_cast<const char*>(array);
  return bytes == 0 || (FakeIsDevice(first) != 0 && FakeIsDevice(first + bytes - 1) != 0);
}

int TryToEnqueue(const char* function, Call call, void* stream) {
  bool usable = call.comm != nullptr && call.comm->state == kSuccess && HasContext() &&
                FakeStreamContext(stream) == call.comm->context;
  if (depth == 0 || !usable || call.root < 0 || call.root >= call.comm->size || call.count == 0 ||
      !WithDType(
          call.dtype, [](auto) {}) ||
      !IsOnDevice(call.in, call.Inputs(), call.dtype) ||
      !IsOnDevice(call.out, call.Outputs(), call.dtype)) {
    return kInvalidArgument;
  }
  if (call.op >= kFirstOwnOp) {
    size_t index = static_cast<size_t>(call.op - kFirstOwnOp);
    const auto& ops = call.comm->ops;
    if (index >= ops.size() || ops[index].destroyed || ops[index].dtype != call.dtype) {
      return kInvalidArgument;
    }
    call.scaled = true;
    call.scalar = ops[index].scalar;
    call.op = kSum;
  } else if (call.op > kMin) {
    return kInvalidArgument;
  }
  Count(function);
  kept = false;
  group.push_back({new Call(std::move(call)), stream});
  return kSuccess;
}

int Enqueue(const char* function, const Call& call, void* stream) {
  int result = TryToEnqueue(function, call, stream);
  if (result != kSuccess) group_error = result;
  return result;
}

}  // namespace

EXPORT int ncclAllReduce(const void* in, void* out, size_t count, int dtype, int op, void* comm,
                         void* stream) {
  Call call{Kind::kAllReduce, Find(comm), in, out, count, dtype, op, 0, false, 1};
  return Enqueue("ncclAllReduce", call, stream);
}

EXPORT int ncclBroadcast(const void* in, void* out, size_t count, int dtype, int root, void* comm,
                         void* stream) {
  Call call{Kind::kBroadcast, Find(comm), in, out, count, dtype, kSum, root, false, 1};
  return Enqueue("ncclBroadcast", call, stream);
}

EXPORT int ncclAllGather(const void* in, void* out, size_t count, int dtype, void* comm,
                         void* stream) {
  Call call{Kind::kAllGather, Find(comm), in, out, count, dtype, kSum, 0, false, 1};
  return Enqueue("ncclAllGather", call, stream);
}

EXPORT int ncclReduceScatter(const void* in, void* out, size_t count, int dtype, int op, void* comm,
                             void* stream) {
  Call call{Kind::kReduceScatter, Find(comm), in, out, count, dtype, op, 0, false, 1};
  return Enqueue("ncclReduceScatter", call, stream);
}

EXPORT int ncclReduce(const void* in, void* out, size_t count, int dtype, int op, int root,
                      void* comm, void* stream) {
  Call call{Kind::kReduce, Find(comm), in, out, count, dtype, op, root, false, 1};
  return Enqueue("ncclReduce", call, stream);
}

EXPORT int ncclSend(const void* in, size_t count, int dtype, int peer, void* comm, void* stream) {
  Call call{Kind::kSend, Find(comm), in, nullptr, count, dtype, kSum, peer, false, 1};
  return Enqueue("ncclSend", call, stream);
}

EXPORT int ncclRecv(void* out, size_t count, int dtype, int peer, void* comm, void* stream) {
  Call call{Kind::kReceive, Find(comm), nullptr, out, count, dtype, kSum, peer, false, 1};
  return Enqueue("ncclRecv", call, stream);
}

EXPORT int ncclGroupEnd() {
  constexpr size_t kMostInGroup = 2048;
  if (depth == 0) return kInvalidUsage;
  if (--depth > 0) return kSuccess;
  std::vector<Enqueued> calls = std::move(group);
  group.clear();
  if (int error = std::exchange(group_error, kSuccess); error != kSuccess) {
    for (const Enqueued& one : calls) delete one.call;
    return error;
  }
  if (calls.empty()) return kept ? kInternalError : kSuccess;
  kept = Version() >= 21900 && Version() < 22700;
  Handle comm = calls[0].call->comm;
  std::vector<Kernel> kernels;
  auto exchange = std::make_unique<Exchange>(Exchange{comm, {}});
  for (const Enqueued& one : calls) {
    std::unique_ptr<Call> call(one.call);
    if (call->kind == Kind::kSend || call->kind == Kind::kReceive) {
      exchange->calls.push_back(*call);
    } else {
      kernels.push_back({RunKernel, call.release()});
    }
  }
  if (calls.size() > kMostInGroup || (!kernels.empty() && !exchange->calls.empty())) {
    return kInvalidUsage;  // the second could be done, but nobody does
  }
  if (kernels.empty()) kernels.push_back({RunExchange, exchange.release()});
  comm->state = kInProgress;
  comm->kernels += static_cast<int>(kernels.size());
  RunThread([comm, kernels, stream = calls[0].stream] {
    Dawdle();
    int failed = 0;
    for (const Kernel& one : kernels) failed |= FakeLaunch(stream, one.run, one.argument);
    comm->state = failed == 0 ? kSuccess : kCudaError;
  });
  return kInProgress;
}
