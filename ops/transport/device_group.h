// DeviceGroup: the ranks of the job, each with a device of its own, which run collectives on
// tensors in the memory of their devices without the host (NCCL).
//
// Everything runs in the background: `done` is called exactly once, on any thread. All ranks start
// the same collectives in the same order; that they agree is up to the caller (collective/device/
// on_device.h), since a group neither compares requests nor notices a rank that does not come.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/span.h"
#include "core/status.h"
#include "transport/kernel_order.h"

namespace smddp {

// What a rank tells the others before they connect; without pointers, because it is sent.
struct DeviceIntroduction {
  char id[128];        // of the group, from its first rank
  char device[16];     // no two devices have the same that the library tells apart
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
  enum class State { kNew, kReady, kUnusable };

  virtual ~DeviceGroup() = default;

  // Why it cannot take such a collective, whatever the rank and the tensors; "" if it can.
  virtual std::string Cannot(const DeviceCollective& collective) const = 0;
  // Why this rank cannot take part with tensors on `device`; "" if it can.
  virtual std::string Unavailable(Device* device) = 0;
  // What this rank, which can take part in others, lacks for this one; "" if nothing. Before the
  // ranks have connected, it takes the memory of the device that the group needs.
  virtual std::string Lacks(Device* device, const DeviceCollective& collective) = 0;
  // Whether it is an error if some rank is unavailable.
  virtual bool required() const = 0;

  virtual DeviceIntroduction Introduce(Device* device, bool first) = 0;
  // To be called on all ranks, with the same introductions, in rank order. Has a limit of time.
  virtual void Connect(Device* device, int rank, const std::vector<DeviceIntroduction>& all,
                       Done done) = 0;
  // When the inputs have been computed, `computed` is called before `done`. Several may be under
  // way; they end in the order in which they were submitted.
  virtual void Submit(DeviceCollective collective, std::function<void()> computed, Done done) = 0;
  // Ends everything that is in progress, and all that comes, with an error. When it returns, the
  // tensors are no longer accessed; if the device does not stop in a few seconds, the log says so.
  virtual void Abort() = 0;
  // Leaves in good order once the others do, for a few seconds at most.
  virtual void Close() = 0;

  // Of the collectives that have ended.
  virtual DeviceGroupStats stats() const = 0;

  KernelOrder* order() { return &order_; }
  State state() const {
    std::lock_guard<std::mutex> lock(state_mutex_);
    return state_;
  }
  void set_state(State state) {
    std::lock_guard<std::mutex> lock(state_mutex_);
    state_ = state;
  }

 private:
  KernelOrder order_;
  mutable std::mutex state_mutex_;
  State state_ = State::kNew;
};

}  // namespace smddp
