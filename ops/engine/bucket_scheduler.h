// BucketScheduler: submits the gradient buckets of a plan in plan order, whatever order TensorFlow
// runs them in.
//
// A run is one execution of a plan: Begin, every bucket once, End. Begin numbers the runs in
// program order, which is the same on all ranks; bucket k of a run enters the channel after bucket
// k - 1. When a bucket fails, the rest of its run fails with it, in the same way on all ranks. An
// abandoned run (the step failed on this rank) is completed with a marker that matches no healthy
// bucket, so the other ranks fail that step instead of waiting for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/channel.h"

namespace smddp {

struct PlanInfo {
  uint64_t fingerprint = 0;
  std::string name;
  std::shared_ptr<const std::string> text;  // one line per gradient
  int num_buckets = 0;
};

// The exchange of a plan without buckets; End waits for it.
class EmptyRun {
 public:
  void Finish(const Status& status);
  // Calls `done` when it has finished, immediately if it already has.
  void WhenDone(std::function<void(const Status&)> done);

 private:
  std::mutex mutex_;
  bool finished_ = false;
  Status status_;
  std::function<void(const Status&)> done_;
};

class BucketScheduler {
 public:
  explicit BucketScheduler(Channel* channel) : channel_(channel) {}

  // Begin and End fail only after Fail.
  Status Begin(std::shared_ptr<const PlanInfo> info, int64_t* run);
  // Accepts a bucket, fills in the request's plan fields, and releases to the channel all buckets
  // that are now in order.
  void Arrive(int64_t run, int bucket, std::unique_ptr<Operation> operation);
  // Call it after all buckets of the run are done. If the plan has none, sets *empty, which the
  // caller must wait for.
  Status End(int64_t run, std::shared_ptr<EmptyRun>* empty);
  // Gives up all open runs: their step failed, or no program could reach this point.
  void CancelRuns();
  // Numbers the next run above this one, because a joined rank took no part in the runs up to it.
  void SkipRun(int64_t run);

  // The channel is broken: fails all held buckets and all later calls. The first failure is kept.
  void Fail(const Status& failure, Endings* endings);

  // For the monitor: adds `seconds` to the time for which held buckets have been waiting for the
  // same missing one, and returns that time; 0 if another thread did not let go for some 20 ms.
  // *what: "step 3 of 'tape' waits for bucket 0 ...".
  double Inspect(double seconds, std::string* what);

 private:
  struct Run {
    int64_t id;
    std::shared_ptr<const PlanInfo> info;
    std::vector<std::unique_ptr<Operation>>
        arrived;  // by bucket; null: not arrived, or already released
    int next = 0;
    std::shared_ptr<EmptyRun> empty;  // for a plan without buckets
    std::shared_ptr<Status> run_outcome = std::make_shared<Status>();
  };

  void Release(Run* run, int bucket, std::unique_ptr<Operation> operation);
  void GiveUpOpen(std::vector<std::unique_ptr<Operation>>* orphans);

  Channel* channel_;
  std::mutex mutex_;      // protects the members below and the order of Enqueue
  std::deque<Run> runs_;  // open ones
  int64_t next_run_ = 1;
  Status failure_;       // set by Fail
  std::string awaited_;  // the last *what of Inspect
  double waited_ = 0;
};

}  // namespace smddp
