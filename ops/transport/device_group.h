// DeviceGroup: the ranks of a process set, each with a device of its own, which run
// collectives on tensors in the memory of their devices without the host (NCCL).
//
// Everything runs in the background: `done` is called exactly once, on any thread. All ranks start
// the same collectives in the same order; that they agree is up to the caller (collective/device/
// on_device.h), since a group neither compares requests nor notices a rank that does not come.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>  // for pair
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/span.h"
#include "core/status.h"

namespace smddp {

// What a rank tells the others before they connect; without pointers, because it is sent.
struct DeviceIntroduction {
  char id[128];        // of the group, from its first rank
  char device[16];     // no two devices have the same
  int32_t version;     // of the library
  int32_t packs;       // 1 if this rank can pack tensors, 0 if not
  char problem[1024];  // why this rank cannot connect; "" if it can
};

// A collective as one rank of a group runs it. What is not reduced is bytes, of dtype uint8.
struct DeviceCollective {
  enum class Kind { kAllreduce, kBroadcast, kAllgather, kReduceScatter, kAlltoall };
  enum class Op { kSum, kMin, kMax, kProduct };
  Kind kind = Kind::kAllreduce;
  DType dtype = DType::kFloat32;
  Op op = Op::kSum;
  // What the inputs and their sum are multiplied by; 1 for other ops. An average is a sum.
  double prescale = 1, postscale = 1;
  int root = 0;  // of a broadcast: a rank of the group
  std::vector<Span> spans;
  // Allgather: bytes from each rank. Alltoall: bytes to each rank, then bytes from each.
  // Reducescatter: elements for each rank, tensor by tensor; a span's `out` has this rank's.
  std::vector<size_t> parts;
  DevicePoint after;  // when the inputs have been computed
  size_t bytes = 0;   // of this rank's inputs or outputs, whichever are more

  bool reduces() const { return kind == Kind::kAllreduce || kind == Kind::kReduceScatter; }
  bool scaled() const { return prescale * postscale != 1; }
};

struct DeviceGroupStats {
  std::string library;  // its version; empty: the ranks have not connected
  uint64_t collectives = 0, bytes = 0;
  uint64_t packed = 0;  // of the collectives: whose tensors were packed
  void Add(const DeviceGroupStats& other) {
    if (library.empty()) library = other.library;
    collectives += other.collectives;
    bytes += other.bytes;
    packed += other.packed;
  }
};

class DeviceGroup {
 public:
  using Done = std::function<void(const Status&)>;
  // The same on all ranks whenever a collective may start.
  enum class State { kNew, kConnecting, kReady, kUnusable };

  virtual ~DeviceGroup() = default;

  // Why it cannot take such a collective, whatever the rank and the tensors; "" if it can.
  virtual std::string Cannot(const DeviceCollective& collective) const = 0;
  // Why this rank cannot take part with tensors on `device`; "" if it can.
  virtual std::string Unavailable(Device* device) = 0;
  // What this rank, which can take part in others, lacks for this one; "" if nothing. Once the
  // ranks have connected, it takes as much memory of the device as the collective needs.
  virtual std::string Lacks(Device* device, const DeviceCollective& collective) = 0;
  // Whether it is an error if some rank is unavailable.
  virtual bool required() const = 0;

  virtual DeviceIntroduction Introduce(Device* device, bool first) = 0;
  // To be called on all ranks, with the same introductions, in rank order. Has a limit of time.
  virtual void Connect(Device* device, int rank, const std::vector<DeviceIntroduction>& all,
                       Done done) = 0;
  // When the inputs have been computed, `computed` is called before `done`.
  virtual void Submit(DeviceCollective collective, std::function<void()> computed, Done done) = 0;
  // Ends everything that is in progress, and all that comes, with an error. When it returns, the
  // tensors are no longer accessed; if the device does not stop in a few seconds, the log says so.
  virtual void Abort() = 0;
  // Leaves in good order once the others do, for a few seconds at most.
  virtual void Close() = 0;

  // Of the collectives that have ended.
  virtual DeviceGroupStats stats() const = 0;

  State state() const {
    std::lock_guard<std::mutex> lock(state_mutex_);
    return state_;
  }
  void set_state(State state) {
    std::lock_guard<std::mutex> lock(state_mutex_);
    state_ = state;
  }

 private:
  mutable std::mutex state_mutex_;
  State state_ = State::kNew;
};

// LaunchTurn: one collective at a time is begun by the first rank of its set, among all groups of
// this process. Two kernels that wait for their peers may exclude each other from a device, so all
// ranks must start collectives in one order, whatever their channels.
class LaunchTurn {
 public:
  // False if it is another's turn; `wake` is then called when that is over.
  bool Take(const void* owner, std::function<void()> wake) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (owner_ == nullptr) owner_ = owner;
    if (owner_ == owner) return true;
    Forget(owner);
    waiting_.emplace_back(owner, std::move(wake));
    return false;
  }
  // Ends the owner's turn, or its waiting.
  void Release(const void* owner) {
    std::lock_guard<std::mutex> lock(mutex_);
    Forget(owner);
    if (owner_ != owner) return;
    owner_ = nullptr;
    for (const auto& one : waiting_) one.second();
    waiting_.clear();
  }

 private:
  void Forget(const void* owner) {
    auto is_owner = [&](const auto& one) { return one.first == owner; };
    waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), is_owner), waiting_.end());
  }

  std::mutex mutex_;
  const void* owner_ = nullptr;
  std::vector<std::pair<const void*, std::function<void()>>> waiting_;
};

}  // namespace smddp
