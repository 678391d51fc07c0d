// Devices of simulated ranks, and the group that lets them run collectives: their streams are
// fibers, and a collective is run when all ranks of the group have come to it. Like NCCL it
// compares nothing; here, however, it is noticed if ranks run different ones.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "program.h"
#include "scheduler.h"
#include "transport/device_group.h"

namespace smddp_sim {

// Runs what is enqueued, one after another, each after a while; what is left when the stream is
// destroyed too.
class SimStream {
 public:
  SimStream(Scheduler* scheduler, int rank, const char* role);
  void Enqueue(std::function<void()> work);

 private:
  using Queue = std::deque<std::function<void()>>;
  Scheduler* scheduler_;
  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
};

class SimDevice : public smddp::Device {
 public:
  SimDevice(Scheduler* scheduler, int rank);
  const char* kind() const override { return "simulated"; }
  smddp::Status AllocateHost(size_t bytes, void** memory) override;
  void FreeHost(void* memory) override;
  smddp::Status Record(void* stream, smddp::DevicePoint* point) override;
  void CopyToHost(const std::vector<smddp::DeviceCopy>& copies, const smddp::DevicePoint& after,
                  Done done) override;
  void CopyFromHost(const std::vector<smddp::DeviceCopy>& copies, Done done) override;

  // A point that is reached by and by.
  smddp::DevicePoint Soon();
  // For streams: until `point` has been reached.
  void Await(const smddp::DevicePoint& point);

 private:
  Scheduler* scheduler_;
  SimStream to_host_, from_host_;
};

// Whether the tensors of an operation are in memory of the devices; `id` tells operations apart.
bool OnDevice(const Program& program, const Call& call, int id);

// What the devices of a job share.
class SimDevices {
 public:
  SimDevices(Scheduler* scheduler, const Program& program);
  ~SimDevices();
  SimDevice* device(int rank) { return &devices_[static_cast<size_t>(rank)]; }
  std::unique_ptr<smddp::DeviceGroup> Join(int rank);

  // What no rank may ever see: that ranks ran different collectives; "" if they did not.
  const std::string& abuse() const { return abuse_; }
  uint64_t collectives() const { return collectives_; }  // of all ranks
  uint64_t ahead() const { return ahead_; }  // of these: begun while another was under way

 private:
  friend class SimDeviceGroup;
  struct Meeting;

  Scheduler* scheduler_;
  const Program& program_;
  std::deque<SimDevice> devices_;
  std::vector<std::unique_ptr<Meeting>> meetings_;  // in the order in which they are started
  std::string abuse_;
  uint64_t collectives_ = 0, ahead_ = 0;
};

}  // namespace smddp_sim
