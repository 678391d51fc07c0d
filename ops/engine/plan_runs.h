// Brings the gradient buckets of a plan into plan order, whatever order TensorFlow runs them in.
//
// A run is one execution of a plan: Begin, every bucket once, End. Runs are numbered by Begin, in
// program order, which is the same on all ranks; bucket k of a run is handed to the channel after
// bucket k - 1. When a bucket fails, the rest of its run fails with it, on all ranks alike. A run
// that is given up (the step failed on this rank) is completed with a marker that no healthy
// bucket matches, so the other ranks fail that step instead of waiting for it.
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
  std::shared_ptr<const std::string> text;  // a line for each gradient
  int num_buckets = 0;
};

// The exchange of a plan without buckets, which End waits for.
class EmptyRun {
 public:
  void Finish(const Status& status);
  // Calls `done` once it has finished, at once if it has.
  void WhenDone(std::function<void(const Status&)> done);

 private:
  std::mutex mutex_;
  bool finished_ = false;
  Status status_;
  std::function<void(const Status&)> done_;
};

class PlanRuns {
 public:
  explicit PlanRuns(Channel* channel) : channel_(channel) {}

  // The only failure, here as in End, is that of Abandon.
  Status Begin(std::shared_ptr<const PlanInfo> info, int64_t* run);
  // Takes the bucket and hands on what is in order now. The request's plan fields are filled in.
  void Arrive(int64_t run, int bucket, std::unique_ptr<Operation> operation);
  // All buckets of the run are done. If there were none, *empty is what the caller has to wait for.
  Status End(int64_t run, std::shared_ptr<EmptyRun>* empty);
  // Gives up the runs that have not ended: their step failed, or no program would come here.
  void GiveUp();
  // The next run has a number above this one; for runs in which a joined rank had no part.
  void SkipRun(int64_t run);

  // The channel is broken: fails the buckets that wait for others, and all that comes later. The
  // first failure stays.
  void Abandon(const Status& failure);

  // For the monitor: adds `seconds` to the time for which buckets that are here have waited for the
  // same other one to come, and returns it. *what: "step 3 of 'tape' waits for bucket 0 ...".
  double Inspect(double seconds, std::string* what);

 private:
  struct Run {
    int64_t id;
    std::shared_ptr<const PlanInfo> info;
    std::vector<std::unique_ptr<Operation>> arrived;  // by bucket; null: not here, or handed on
    int next = 0;
    std::shared_ptr<EmptyRun> empty;  // of a run without buckets
    std::shared_ptr<Status> run_outcome = std::make_shared<Status>();
  };

  void Release(Run* run, int bucket, std::unique_ptr<Operation> operation);
  void GiveUpOpen(std::vector<std::unique_ptr<Operation>>* orphans);

  Channel* channel_;
  std::mutex mutex_;      // protects what follows, and the order of Enqueue
  std::deque<Run> runs_;  // open ones
  int64_t next_run_ = 1;
  Status failure_;       // of Abandon
  std::string awaited_;  // the last *what of Inspect
  double waited_ = 0;
};

}  // namespace smddp
