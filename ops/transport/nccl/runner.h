// NcclRunner: the thread of an NcclGroup, which makes its calls of NCCL.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>  // for move
#include <vector>

#include "transport/cuda/cuda_device.h"
#include "transport/device_group.h"
#include "transport/nccl/library.h"
#include "transport/nccl/packer.h"

namespace smddp {

class NcclRunner : public std::enable_shared_from_this<NcclRunner> {
 public:
  using Done = DeviceGroup::Done;
  struct Membership {
    NcclUniqueId id;
    int size, rank;
    double connect_seconds;
  };
  // Without a packer, which all ranks need alike, tensors are reduced where they are.
  NcclRunner(std::shared_ptr<const NcclLibrary> library, CudaDevice* device, Membership membership,
             std::shared_ptr<Packer> packer)
      : library_(std::move(library)),
        device_(device),
        membership_(membership),
        packer_(std::move(packer)) {}

  // Starts the thread, which connects, and reports that to `connected`.
  void Start(const Done& connected);
  void Submit(DeviceCollective collective, std::function<void()> computed, Done done);
  // These end the thread, and wait for that; false if it has not ended in time.
  bool Abort(double seconds) { return End(&aborted_, seconds); }
  bool Close(double seconds) { return End(&closing_, seconds); }
  DeviceGroupStats stats() const;

 private:
  struct Job {
    DeviceCollective collective;
    std::function<void()> computed;
    Done done;
    DevicePoint end;  // null: not enqueued yet
    bool told = false;
    std::shared_ptr<char> table;  // of the packer; null: not packed
  };

  using Has = std::function<bool(size_t i)>;
  using Call = std::function<NcclResult(size_t i)>;

  bool End(bool* flag, double seconds);
  void Run(const Done& connected);
  void Serve();
  Status Connect();
  Status Enqueue(Job* job);
  Status TakeTable(Job* job);
  Status InGroups(const char* function, size_t count, const Has& has, const Call& call);
  Status Settle(const char* function, NcclResult result, double seconds);
  Status AsyncError();
  Status PollRunning(bool* moved);
  void Tell(Job* job);
  void TellAll(const Status& failure);
  void Leave(const Status& failure);
  bool aborted();

  // What NCCL is called for a collective: runner_calls.cc.
  Status EnqueuePacked(const Job& job);
  Status EnqueueInPlace(const DeviceCollective& collective);
  Status EnqueueReduction(const DeviceCollective& collective);
  Status Reduce(const DeviceCollective& collective, int op);
  Status AllReduce(const std::vector<Span>& spans, DType dtype, int op);
  Status ReduceScatter(const DeviceCollective& collective, int op);
  Status Broadcast(const DeviceCollective& collective);
  Status Allgather(const DeviceCollective& collective);
  Status Alltoall(const DeviceCollective& collective);

  const std::shared_ptr<const NcclLibrary> library_;
  CudaDevice* const device_;
  const Membership membership_;
  const std::shared_ptr<Packer> packer_;  // may be null
  void* comm_ = nullptr;
  void* stream_ = nullptr;
  std::deque<Job> running_;  // enqueued; of the thread
  std::atomic<uint64_t> collectives_{0}, bytes_{0}, packed_{0};

  std::mutex mutex_;  // protects the members below
  std::condition_variable changed_;
  std::deque<Job> waiting_;
  bool aborted_ = false, closing_ = false, ended_ = false;
  Status failure_;
};

}  // namespace smddp
