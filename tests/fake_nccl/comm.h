// The communicators of the fake NCCL, and its "kernels", which run on a stream's thread.
#pragma once

#include <sched.h>
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
constexpr size_t kLetter = 8 << 10;
constexpr useconds_t kPoll = 20;
constexpr int kYields = 100;

enum class Kind : int {
  kAllReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kReduce,
  kSend,
  kReceive
};

// Where a rank is: by these NCCL tells its GPU from the others'.
struct Home {
  char gpu[16];   // its uuid
  uint64_t host;  // of NCCL_HOSTID
};

// In the file that the ranks share.
struct Member {
  std::atomic<uint64_t> written, read;
  Home home;
  uint64_t count;
  int dtype, op, root;
  Kind kind;
  char data[kChunk];
};
// What one rank sends another.
struct Mail {
  std::atomic<uint64_t> written, read;
  uint64_t bytes;  // of the whole message
  char data[kLetter];
};
struct Meeting {
  std::atomic<int> arrived;  // ranks that have connected
  Member members[kMostRanks];
  Mail mail[kMostRanks][kMostRanks];  // by sender and receiver
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
  void* context = nullptr;  // of its GPU
  Home home = {};
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

// nccl.cc: of the whole process.
void Count(const char* what);
Handle Find(void* comm);
bool HasContext();
int Version();

// One call of NCCL; `count` is its argument. A message has its peer as root, and either array.
struct Call {
  Kind kind;
  Handle comm;
  const void* in;
  void* out;
  uint64_t count;
  int dtype, op, root;
  bool scaled;
  double scalar;

  // Elements of this rank's arrays.
  uint64_t Inputs() const {
    bool none = kind == Kind::kReceive || (kind == Kind::kBroadcast && comm->rank != root);
    return none ? 0 : Total();
  }
  uint64_t Outputs() const {
    if (kind == Kind::kSend) return 0;
    if (kind == Kind::kReduce && comm->rank != root) return 0;
    return kind == Kind::kAllGather ? count * static_cast<uint64_t>(comm->size) : count;
  }
  // Elements that a rank may stage.
  uint64_t Total() const {
    return kind == Kind::kReduceScatter ? count * static_cast<uint64_t>(comm->size) : count;
  }
};

// False if the communicator was aborted first. A sleep takes several times as long as a peer does.
inline bool Await(const Comm& comm, const std::function<bool()>& reached) {
  for (int looks = 0; !reached(); ++looks) {
    if (comm.aborted) return false;
    if (looks < kYields) {
      sched_yield();
    } else {
      usleep(kPoll);
    }
  }
  return true;
}

// Elements [begin, begin + n) of this rank's input, for the others.
template <typename T>
void Stage(const Call& call, uint64_t begin, uint64_t n) {
  Member& own = call.comm->meeting->members[call.comm->rank];
  own.count = call.count;
  own.dtype = call.dtype;
  own.op = call.scaled ? kMin + 1 : call.op;
  own.kind = call.kind;
  own.root = call.root;
  if (call.Inputs() == 0) return;
  const T* in = reinterpret_cast<const T*>(FakeBytes(call.in)) + begin;
  T* staged = reinterpret_cast<T*>(own.data);
  for (uint64_t i = 0; i < n; ++i) {
    staged[i] = call.scaled ? To<T>(Value(in[i]) * To<decltype(Value(in[i]))>(call.scalar)) : in[i];
  }
}

// What this rank gets of them.
template <typename T>
void Collect(const Call& call, uint64_t begin, uint64_t n) {
  const Comm& comm = *call.comm;
  auto staged = [&](int r) { return reinterpret_cast<const T*>(comm.meeting->members[r].data); };
  T* out = reinterpret_cast<T*>(FakeBytes(call.out)) + begin;
  if (call.kind == Kind::kBroadcast) {
    std::copy_n(staged(call.root), n, out);
    return;
  }
  if (call.kind == Kind::kAllGather) {
    for (int r = 0; r < comm.size; ++r) {
      std::copy_n(staged(r), n, out + call.count * static_cast<uint64_t>(r));
    }
    return;
  }
  if (call.Outputs() == 0) return;
  uint64_t first = 0, last = n;  // of these, the elements that this rank gets
  if (call.kind == Kind::kReduceScatter) {
    uint64_t own = call.count * static_cast<uint64_t>(comm.rank), end = own + call.count;
    first = std::clamp(own, begin, begin + n) - begin;
    last = std::clamp(end, begin, begin + n) - begin;
    out -= own;
  }
  for (uint64_t i = first; i < last; ++i) {
    T sum = staged(0)[i];
    for (int r = 1; r < comm.size; ++r) sum = Combined(sum, staged(r)[i], call.op);
    out[i] = sum;
  }
}

template <typename T>
bool RunChunk(const Call& call, uint64_t begin, uint64_t n) {
  Comm& comm = *call.comm;
  Member* members = comm.meeting->members;
  Member& own = members[comm.rank];
  uint64_t step = comm.step + 1;
  auto all = [&](std::atomic<uint64_t> Member::* counter) {
    auto reached = [&, counter] {
      return std::all_of(members, members + comm.size,
                         [&](const Member& member) { return member.*counter >= step; });
    };
    return Await(comm, reached);
  };
  Stage<T>(call, begin, n);
  comm.step = step;
  own.written = step;
  if (!all(&Member::written)) return false;
  bool same = std::all_of(members, members + comm.size, [&](const Member& other) {
    return other.count == own.count && other.dtype == own.dtype && other.op == own.op &&
           other.kind == own.kind && other.root == own.root;
  });
  if (!same) {
    comm.error = kInvalidUsage;  // the real one would corrupt memory, or hang
    return Await(comm, [] { return false; });
  }
  Collect<T>(call, begin, n);
  own.read = step;
  return all(&Member::read);
}

// The messages of a group, which go on side by side: one at a time for each pair of ranks.
struct Exchange {
  Handle comm;
  std::vector<Call> calls;
};

// Sends or receives the next piece of a message, if that is possible now.
inline bool MoveLetter(const Call& call, uint64_t bytes, uint64_t* done) {
  Comm& comm = *call.comm;
  bool sends = call.kind == Kind::kSend;
  Mail& mail =
      sends ? comm.meeting->mail[comm.rank][call.root] : comm.meeting->mail[call.root][comm.rank];
  if ((mail.written == mail.read) != sends) return false;
  uint64_t n = std::min<uint64_t>(kLetter, bytes - *done);
  if (sends) {
    mail.bytes = bytes;
    std::copy_n(FakeBytes(call.in) + *done, n, mail.data);
    ++mail.written;
  } else if (mail.bytes == bytes) {
    std::copy_n(mail.data, n, FakeBytes(call.out) + *done);
    ++mail.read;
  } else {
    comm.error = kInvalidUsage;  // the real one would hang, or write what nobody expects
    return false;
  }
  *done += n;
  return true;
}

inline void RunMessages(const Exchange& exchange) {
  Comm& comm = *exchange.comm;
  std::vector<uint64_t> done(exchange.calls.size());
  for (bool left = true; left && !comm.aborted;) {
    bool moved = false;
    left = false;
    std::vector<std::pair<Kind, int>> busy;  // with an earlier message
    for (size_t i = 0; i < exchange.calls.size(); ++i) {
      const Call& call = exchange.calls[i];
      uint64_t bytes = call.count;
      WithDType(call.dtype, [&](auto value) { bytes *= sizeof value; });
      if (done[i] == bytes) continue;
      left = true;
      std::pair<Kind, int> way{call.kind, call.root};
      if (std::find(busy.begin(), busy.end(), way) != busy.end()) continue;
      busy.push_back(way);
      moved = MoveLetter(call, bytes, &done[i]) || moved;
    }
    if (!moved) usleep(kPoll);
  }
}

// Whether a kernel of this rank goes on, or does nothing until it is aborted.
inline bool Goes(Comm* comm) {
  bool goes = !comm->aborted;
  if (goes && Setting("FAKE_NCCL_FAIL", -1) == comm->rank) comm->error = kSystemError;
  if (comm->error != kSuccess || Setting("FAKE_NCCL_HANG", -1) == comm->rank) {
    goes = goes && Await(*comm, [] { return false; });
  }
  return goes;
}

inline void RunExchange(void* argument) {
  std::unique_ptr<Exchange> exchange(static_cast<Exchange*>(argument));
  if (Goes(exchange->comm.get())) RunMessages(*exchange);
  --exchange->comm->kernels;
}

inline void RunKernel(void* argument) {
  std::unique_ptr<Call> call(static_cast<Call*>(argument));
  Comm& comm = *call->comm;
  bool goes = Goes(&comm);
  WithDType(call->dtype, [&](auto value) {
    using T = decltype(value);
    constexpr uint64_t kMost = kChunk / sizeof(T);
    for (uint64_t at = 0; goes && at < call->Total(); at += kMost) {
      goes = RunChunk<T>(*call, at, std::min(kMost, call->Total() - at));
    }
  });
  --comm.kernels;
}

}  // namespace fake_nccl
