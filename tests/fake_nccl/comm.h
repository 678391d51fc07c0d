// The communicators of the fake NCCL, and its "kernels", which run on a stream's thread.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "arithmetic.h"
#include "memory.h"

namespace fake_nccl {

enum Result {
  kSuccess,
  kCudaError,
  kSystemError,
  kInternalError,
  kInvalidArgument,
  kInvalidUsage,
  kRemoteError,
  kInProgress
};

constexpr int kMostRanks = 16;
constexpr size_t kChunk = 32 << 10;
constexpr useconds_t kPoll = 20;

// In the file that the ranks share.
struct Member {
  std::atomic<uint64_t> written, read;
  uint64_t count;
  int dtype, op;
  char data[kChunk];
};
struct Meeting {
  std::atomic<int> arrived;
  Member members[kMostRanks];
};

inline long Setting(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atol(text);
}

inline void Dawdle() {
  thread_local std::mt19937 random(std::random_device{}());
  long delay = Setting("FAKE_NCCL_DELAY", 0);
  if (delay > 0) usleep(static_cast<useconds_t>(random() % static_cast<unsigned>(delay + 1)));
}

struct Comm {
  int rank = 0, size = 0;
  std::string path;
  Meeting* meeting = nullptr;
  std::atomic<int> state{kInProgress};  // of the last call
  std::atomic<int> error{kSuccess};     // of a kernel
  std::atomic<bool> aborted{false};
  std::atomic<int> kernels{0};  // enqueued and not ended
  uint64_t step = 0;            // of the stream's thread
  struct OwnOp {
    double scalar;
    int dtype;
    bool destroyed;
  };
  std::vector<OwnOp> ops;
};
using Handle = std::shared_ptr<Comm>;

struct Reduction {
  Handle comm;
  const void* in;
  void* out;
  uint64_t count;
  int dtype, op;
  bool scaled;
  double scalar;
};

// False if the communicator was aborted first.
inline bool Await(const Comm& comm, const std::function<bool()>& reached) {
  while (!reached()) {
    if (comm.aborted) return false;
    usleep(kPoll);
  }
  return true;
}

template <typename T>
bool RunChunk(const Reduction& job, uint64_t begin, uint64_t n) {
  Comm& comm = *job.comm;
  Member* members = comm.meeting->members;
  Member& own = members[comm.rank];
  const T* in = reinterpret_cast<const T*>(FakeBytes(job.in)) + begin;
  T* staged = reinterpret_cast<T*>(own.data);
  for (uint64_t i = 0; i < n; ++i) {
    staged[i] = job.scaled ? To<T>(Value(in[i]) * To<decltype(Value(in[i]))>(job.scalar)) : in[i];
  }
  own.count = job.count;
  own.dtype = job.dtype;
  own.op = job.scaled ? kMin + 1 : job.op;
  uint64_t step = ++comm.step;
  own.written = step;

  auto all = [&](std::atomic<uint64_t> Member::* counter) {
    return Await(comm, [&, counter] {
      return std::all_of(members, members + comm.size,
                         [&](const Member& member) { return member.*counter >= step; });
    });
  };
  if (!all(&Member::written)) return false;
  for (int r = 0; r < comm.size; ++r) {
    if (members[r].count == own.count && members[r].dtype == own.dtype && members[r].op == own.op) {
      continue;
    }
    comm.error = kInvalidUsage;  // the real one would corrupt memory, or hang
    return Await(comm, [] { return false; });
  }
  T* out = reinterpret_cast<T*>(FakeBytes(job.out)) + begin;
  for (uint64_t i = 0; i < n; ++i) {
    T sum = reinterpret_cast<const T*>(members[0].data)[i];
    for (int r = 1; r < comm.size; ++r) {
      sum = Combined(sum, reinterpret_cast<const T*>(members[r].data)[i], job.op);
    }
    out[i] = sum;
  }
  own.read = step;
  return all(&Member::read);
}

inline void RunKernel(void* argument) {
  std::unique_ptr<Reduction> job(static_cast<Reduction*>(argument));
  Comm& comm = *job->comm;
  bool goes = !comm.aborted;
  if (goes && Setting("FAKE_NCCL_FAIL", -1) == comm.rank) comm.error = kSystemError;
  if (comm.error != kSuccess || Setting("FAKE_NCCL_HANG", -1) == comm.rank) {
    goes = goes && Await(comm, [] { return false; });
  }
  WithDType(job->dtype, [&](auto value) {
    using T = decltype(value);
    constexpr uint64_t kMost = kChunk / sizeof(T);
    for (uint64_t at = 0; goes && at < job->count; at += kMost) {
      goes = RunChunk<T>(*job, at, std::min(kMost, job->count - at));
    }
  });
  --comm.kernels;
}

}  // namespace fake_nccl
