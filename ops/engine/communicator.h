// Communicator: one job's connection, and the only mutable state behind the C API.
//
// It owns the process sets, of which number 0 is all ranks, and a monitor thread that watches over
// peers, stalls and deadlines in all of them.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/connect/connect.h"
#include "engine/rank_set.h"
#include "engine/watch/watched.h"

namespace smddp {

class Monitor;

class Communicator : public Watched {
 public:
  Communicator(std::unique_ptr<JobContext> context, std::unique_ptr<Connection> everybody);
  ~Communicator() override;  // of one that Leave was not called for: stops the threads

  // Starts the threads and makes this rank visible to its node.
  Status Start();
  // Tells the node that this rank takes part no more, and stops the threads. With `failed` MPI is
  // not finalized, since peers may never get there.
  void Leave(bool failed);

  const Topology& topology() const { return everybody_->topology(); }

  // ---- process sets; adding and removing are collective over all ranks of the job ----

  // Null, and *why: there is no such set, or this rank is not in it.
  std::shared_ptr<RankSet> Find(int number, Status* why) const;
  // Job ranks, ascending. Empty: there is no such set.
  std::vector<int> RanksOf(int number) const;
  // `ranks` ascending. Fails on all ranks alike.
  Status AddSet(const std::vector<int>& ranks, int* number);
  Status RemoveSet(int number);
  // Fails on all ranks, with both sides, unless all ranks give the same text.
  Status Agree(const std::string& text);

  // For the monitor.
  void InspectAll(double seconds,
                  const std::function<void(Operation*, const std::vector<int>&)>& look) override;
  void InspectPlans(
      double seconds,
      const std::function<void(const std::string& waiting, double waited)>& look) override;
  Status InspectCycles(double seconds) override;
  void FailAll(const Status& failure) override;
  // An operation failed, in whatever set: breaks the communicator on every rank of the job. The
  // monitors pass it on.
  void Break(const Status& failure);
  bool failed() const { return failed_; }

  Timeline* timeline() override { return &timeline_; }
  std::string FlightRecord() const override { return recorder_.Dump(); }
  std::string StatsJson() const;

 private:
  struct Entry {
    std::vector<int> ranks;
    std::shared_ptr<RankSet> set;  // null: this rank is not in it
  };

  void AnnounceDeparture(const std::function<bool()>& stop);
  void WarnOfBinding() const;
  // All that this rank is in.
  std::vector<std::shared_ptr<RankSet>> OwnSets() const;
  Status CheckNewSet(const std::vector<int>& ranks) const;
  Status CheckRemoval(int number);
  // An allgather of bytes[r] bytes from each rank r of the job.
  Status Gather(const void* own, const std::vector<size_t>& bytes, void* all);

  std::unique_ptr<JobContext> context_;
  Selector selector_;
  FlightRecorder recorder_;
  Timeline& timeline_;
  const double spin_seconds_;
  const std::unique_ptr<RankSet> everybody_;
  std::unique_ptr<Monitor> monitor_;

  std::mutex changing_;            // held while a set is added or removed
  mutable std::mutex sets_mutex_;  // protects what follows
  std::map<int, Entry> sets_;      // without number 0
  int next_number_ = 1;            // never used again, so that a stale number is an error
  Status failure_;
  std::atomic<bool> failed_{false};
};

}  // namespace smddp
