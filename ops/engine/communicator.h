// Communicator: one job's connection, and the only mutable state behind the C API.
//
// It owns two channels (hand-written collectives; gradient plans), a progress thread that advances
// asynchronous operations, and a monitor thread that watches over peers, stalls and deadlines. A
// blocking call advances its channel on the caller's own thread, so a small collective costs no
// thread switch.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine/channel.h"
#include "engine/plan_runs.h"
#include "engine/waiter.h"
#include "engine/world.h"

namespace smddp {

class Monitor;

class Communicator {
 public:
  explicit Communicator(std::unique_ptr<World> world);
  ~Communicator();  // orderly: Leave was called, or the process ends

  // Starts the threads and makes this rank visible to its node.
  Status Start();
  // Tells the node that this rank takes part no more, and stops the threads. With `failed` MPI is
  // not finalized, since peers may never get there.
  void Leave(bool failed);

  const Topology& topology() const { return world_->topology; }
  const World& world() const { return *world_; }

  // Hand-written collectives: blocks until done.
  Status Run(Request request);

  // Gradient plans; see PlanRuns.
  int64_t BeginPlan(std::shared_ptr<const PlanInfo> info);
  void SubmitBucket(int64_t run, int bucket, std::unique_ptr<Operation> operation);
  Status EndPlan(int64_t run);

  // The sentence that says what this rank waits for; for the monitor.
  void InspectAll(double seconds,
                  const std::function<void(Operation*, const std::vector<int>&)>& look);
  std::string DescribeWaitingPlans() const { return plans_.Describe(); }
  // Breaks the communicator: everything pending and to come fails with this.
  void FailAll(const Status& failure);
  bool failed() const { return failed_; }

  std::string FlightRecord() const { return recorder_.Dump(); }
  std::string StatsJson() const;

 private:
  // Advances a channel on this thread until `done`.
  void WaitOn(Channel* channel, const std::atomic<bool>& done);
  void WakeProgress();
  void ProgressLoop();
  Waiter MakeWaiter() const;

  std::unique_ptr<World> world_;
  Selector selector_;
  FlightRecorder recorder_;
  Channel hand_;
  Channel gradients_;
  PlanRuns plans_;
  double spin_seconds_;
  std::unique_ptr<Monitor> monitor_;

  std::atomic<bool> failed_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> progress_idle_{false};
  std::mutex progress_mutex_;
  std::condition_variable progress_wanted_;
  std::thread progress_;
};

}  // namespace smddp
