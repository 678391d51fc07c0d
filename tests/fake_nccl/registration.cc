// Memory from NCCL's own allocator, and what communicators do with it. As with the real one,
// all ranks register a window together, later calls have to wait for that, though versions from
// 2.28 on say at once that it has succeeded, and a collective in which the ranks' arrays are
// registered differently, or at different places, is none. Before 2.29.7 those in windows wait for
// their peers even if they are aborted.
#include <unistd.h>

#include <map>
#include <mutex>

#include "comm.h"
#include "core/detached_thread.h"
#include "memory.h"

extern "C" int cuMemAlloc_v2(void** address, size_t bytes);
extern "C" int cuMemFree_v2(void* address);

namespace fake_nccl {
namespace {

constexpr int kBuffers = 21900, kWindows = 22700, kSaysSuccess = 22800, kHeeds = 22907;
constexpr int kSymmetric = 1;

std::mutex mutex;  // protects the two below
std::map<const void*, size_t>& Allocated() {
  static auto* allocated = new std::map<const void*, size_t>();
  return *allocated;
}
std::map<const void*, int>& Registered() {  // by how many communicators
  static auto* registered = new std::map<const void*, int>();
  return *registered;
}

const Comm::Registered* Place(const Comm& comm, const void* address, uint64_t bytes) {
  const char* at = static_cast<const char*>(address);
  for (const auto& [handle, one] : comm.registered) {
    if (at >= one.begin && at + bytes <= one.begin + one.bytes) return &one;
  }
  return nullptr;
}

int64_t OffsetIn(const Comm::Registered* one, const void* address) {
  if (one == nullptr) return -1;
  return one->window ? static_cast<const char*>(address) - one->begin : 0;
}

bool MayRegister(const Comm& comm, const void* memory, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex);
  auto it = Allocated().find(memory);
  return comm.state == kSuccess && it != Allocated().end() && bytes <= it->second;
}

int Deregister(const char* function, void* comm_handle, void* handle, bool window) {
  Handle comm = Find(comm_handle);
  if (comm == nullptr || comm->state != kSuccess) return kInvalidArgument;
  auto it = comm->registered.find(handle);
  if (it == comm->registered.end() || it->second.window != window) return kInvalidUsage;
  Count(comm->kernels == 0 ? function : "deregistered while in use");
  std::lock_guard<std::mutex> lock(mutex);
  --Registered()[it->second.begin];
  comm->registered.erase(it);
  return kSuccess;
}

void Add(Comm* comm, void* memory, size_t bytes, bool window) {
  std::lock_guard<std::mutex> lock(mutex);
  ++Registered()[memory];
  comm->registered[memory] = {static_cast<const char*>(memory), bytes, window};
}

}  // namespace

void Locate(Call* call, uint64_t element) {
  const Comm& comm = *call->comm;
  if (comm.registered.empty()) return;
  const Comm::Registered* in = Place(comm, call->in, call->Inputs() * element);
  const Comm::Registered* out = Place(comm, call->out, call->Outputs() * element);
  call->in_at = OffsetIn(in, call->in);
  call->out_at = OffsetIn(out, call->out);
  bool in_windows = in != nullptr && out != nullptr && in->window && out->window;
  call->heedless = in_windows && Version() < kHeeds;
  if (call->in_at >= 0) Count("a call with registered memory");
}

bool ForgetRegistered(Comm* comm) {
  std::lock_guard<std::mutex> lock(mutex);
  for (const auto& [handle, one] : comm->registered) --Registered()[one.begin];
  bool any = !comm->registered.empty();
  comm->registered.clear();
  return any;
}

}  // namespace fake_nccl

using namespace fake_nccl;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int ncclMemAlloc(void** memory, size_t bytes) {
  constexpr size_t kPage = 2 << 20;
  if (Version() < kBuffers || !HasContext()) return kInvalidUsage;
  if (Setting("FAKE_NCCL_NO_MEMORY", 0) != 0) return kCudaError;
  if (cuMemAlloc_v2(memory, (bytes + kPage - 1) / kPage * kPage) != 0) return kCudaError;
  std::lock_guard<std::mutex> lock(mutex);
  Allocated()[*memory] = bytes;
  return kSuccess;
}

EXPORT int ncclMemFree(void* memory) {
  std::lock_guard<std::mutex> lock(mutex);
  if (Allocated().erase(memory) == 0 || !HasContext()) return kInvalidArgument;
  if (Registered()[memory] > 0) Count("freed while registered");
  Registered().erase(memory);
  return cuMemFree_v2(memory) == 0 ? kSuccess : kCudaError;
}

EXPORT int ncclCommRegister(void* comm_handle, void* memory, size_t bytes, void** handle) {
  Handle comm = Find(comm_handle);
  if (Version() < kBuffers || comm == nullptr || !MayRegister(*comm, memory, bytes)) {
    return kInvalidUsage;
  }
  if (Setting("FAKE_NCCL_FAIL_REGISTER", -1) == comm->rank) return kSystemError;
  *handle = nullptr;
  if (Setting("FAKE_NCCL_NO_BUFFERS", 0) != 0) return kSuccess;
  Count("ncclCommRegister");
  Add(comm.get(), memory, bytes, false);
  *handle = memory;
  return kSuccess;
}

EXPORT int ncclCommDeregister(void* comm, void* handle) {
  return Deregister("ncclCommDeregister", comm, handle, false);
}

EXPORT int ncclCommWindowRegister(void* comm_handle, void* memory, size_t bytes, void** window,
                                  int flags) {
  Handle comm = Find(comm_handle);
  if (Version() < kWindows || comm == nullptr || !MayRegister(*comm, memory, bytes) ||
      flags != kSymmetric || comm->kernels > 0) {
    return kInvalidUsage;
  }
  *window = nullptr;
  if (Setting("FAKE_NCCL_NO_WINDOWS", 0) != 0) return kSuccess;
  Count("ncclCommWindowRegister");
  comm->state = kInProgress;
  smddp::RunDetached([=] {
    Dawdle();
    if (Setting("FAKE_NCCL_FAIL_REGISTER", -1) == comm->rank) {
      comm->state = kSystemError;
      return;
    }
    ++comm->meeting->windows;
    int all = ++comm->windows * comm->size;
    if (!Await(*comm, [&] { return comm->meeting->windows >= all; })) return;
    Add(comm.get(), memory, bytes, true);
    *window = memory;
    comm->state = kSuccess;
  });
  return Version() >= kSaysSuccess ? kSuccess : kInProgress;
}

EXPORT int ncclCommWindowDeregister(void* comm, void* window) {
  return Deregister("ncclCommWindowDeregister", comm, window, true);
}
