// RankSet: a process set, as seen by one of its members.
//
// It owns two channels (explicit collectives and gradient plans), the messages between two ranks,
// and a progress thread that advances asynchronous operations. A blocking call advances its channel
// on the caller's own thread, so a small collective costs no thread switch. Sets share nothing, so
// a rank may be in several sets without one waiting for another.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/bucket_scheduler.h"
#include "engine/channel.h"
#include "engine/connect/connect.h"
#include "engine/deadlock_detector.h"
#include "engine/messages.h"
#include "engine/waiter.h"

namespace smddp {

class RankSet {
 public:
  // `number`: 0 is the set of all ranks. The pointers must outlive the set. `broken`: see Channel;
  // it must break every set of the job, this one included.
  RankSet(int number, std::unique_ptr<Connection> connection, const Selector* selector,
          FlightRecorder* recorder, Timeline* timeline, double spin_seconds, const Broken& broken);
  ~RankSet();  // after StopProgress, or at process exit

  void StartProgress();
  void StopProgress();

  int number() const { return number_; }
  const Topology& topology() const { return connection_->topology; }
  ShmGroup* shm() const { return connection_->shm.get(); }
  Alarm* alarm() const { return connection_->alarm.get(); }
  const DeviceGroup* devices() const { return connection_->devices.get(); }
  // Of a job of one rank, once no operation is under way.
  void ForgetMemory() { connection_->segment.Forget(); }
  size_t StagingBytes() const { return connection_->StagingBytes(); }

  // Runs an explicit collective; blocks until it is done.
  Status Run(Request request);
  // The same, asynchronously: does not wait for late peers. `done` is called once, on any thread,
  // possibly before this returns.
  void Post(std::unique_ptr<Operation> operation);

  // ---- messages between two ranks
  Messages* messages() { return &messages_; }
  // If these fail, so does the job.
  Status StartMessage(const std::shared_ptr<Message>& message);
  // Returns when the message is over, or `seconds` have passed; < 0: without a limit.
  Status AwaitMessage(Message* message, double seconds);

  // Gradient plans; see BucketScheduler.
  Status BeginPlan(std::shared_ptr<const PlanInfo> info, int64_t* run);
  void SubmitBucket(int64_t run, int bucket, std::unique_ptr<Operation> operation);
  void EndPlan(int64_t run, std::function<void(const Status&)> done);

  // Takes part in the other ranks' collectives, contributing zeros, until all have joined. *last:
  // the last job rank to join.
  Status Join(int* last);
  // When a thread began to wait there; 0: none does.
  double joining_since() const { return joining_since_; }

  // True if no collective is pending or in progress.
  bool Idle() const { return direct_.Idle() && gradients_.Idle(); }
  // Fails the job, since this rank could not go on in an operation of the set. Afterwards none is
  // pending.
  void Break(const Status& failure) { UnlessClosed(broken_)(failure, true); }
  // Fails every operation and message, pending or future; see Channel.
  void Fail(const Status& failure, Endings* endings);
  // After Fail; see Channel.
  bool AnnounceDeparture() { return direct_.AnnounceDeparture() & gradients_.AnnounceDeparture(); }
  // Ends the group of the devices, which is not used afterwards; after StopProgress.
  void CloseDevices(bool broken);
  // Closes the set; all members must call it, in the same order.
  void Close(const Status& reason);

  // For the monitor: reports the operations that this rank is waiting for; false if it could not
  // look at all of them (Channel::Inspect).
  bool Inspect(double seconds,
               const std::function<void(Operation*, const std::vector<int>&)>& look);
  // The same for messages.
  void InspectMessages(double seconds,
                       const std::function<void(Operation*, const std::vector<int>&)>& look) {
    messages_.Inspect(seconds, look);
  }
  double InspectPlans(double seconds, std::string* what) { return plans_.Inspect(seconds, what); }
  Status InspectCycles(double seconds) { return cycles_.Look(seconds, &direct_, &gradients_); }
  // Of explicit collectives; see Channel. The progress thread may be asleep, so this looks itself.
  bool Awaits(std::optional<uint64_t> key) {
    direct_.Pump();
    return direct_.Awaits(key);
  }
  ChannelStats DirectStats() const { return direct_.Stats(); }
  ChannelStats GradientStats() const { return gradients_.Stats(); }

 private:
  void WaitForMessage(Message* message, double seconds);
  // Advances the channel on the calling thread until `done`.
  void WaitOn(Channel* channel, const std::atomic<bool>& done);
  struct Joining {
    uint64_t tickets = 0;
    JoinedChannel direct, gradients;
  };
  bool JoinOver(const Joining& joining, int* last) const;
  Status WaitForJoins(int* last);
  bool ServeJoined(Joining* joining);
  Status JoinFailure(const Joining& joining) const;
  Broken UnlessClosed(const Broken& broken);
  void WakeProgress();
  // Whether there is work that no other thread advances.
  bool NeedsProgress() const { return !gradients_.Idle() || unattended_ > 0; }
  void ProgressLoop();
  Waiter MakeWaiter();

  const int number_;
  const Broken broken_;
  std::atomic<bool> closed_{false};
  std::atomic<double> joining_since_{0};
  std::unique_ptr<Connection> connection_;
  Channel direct_;
  Channel gradients_;
  BucketScheduler plans_;
  Messages messages_;
  DeadlockDetector cycles_;
  const double spin_seconds_;
  std::atomic<double> crowded_until_{0};  // see Waiter

  std::atomic<int> unattended_{0};  // posted operations whose thread no longer waits
  std::atomic<bool> stopping_{false};
  std::atomic<bool> progress_idle_{false};
  std::mutex progress_mutex_;
  std::condition_variable progress_wanted_;
  std::thread progress_;
};

}  // namespace smddp
