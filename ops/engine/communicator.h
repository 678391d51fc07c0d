// Communicator: one job's connection, and the only mutable state behind the C API.
//
// It owns the process sets (number 0 is all ranks) and the monitor thread, which watches peers,
// stalls and deadlines in all of them.
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
  ~Communicator() override;  // without Leave: only stops the threads

  // Starts the threads and marks this rank as alive to its node; returns what `all_started` does,
  // which waits until the other ranks have too. Throws std::system_error if there can be no more
  // threads.
  Status Start(const std::function<Status()>& all_started = [] { return Status(); });
  // Announces that this rank is leaving, and stops the threads. If `failed`, MPI is not finalized,
  // since peers may never reach MPI_Finalize. Returns whether nobody but callers that are still
  // inside uses this any more; otherwise it must stay until the process ends.
  bool Leave(bool failed);
  // What this process ends with, which is told to the ranks of the node that wait for this one.
  void NoteException(const std::string& text) const { everybody_->shm()->NoteException(text); }

  const Topology& topology() const { return everybody_->topology(); }

  // ---- process sets; adding and removing are collective over all ranks of the job ----

  // Null, with the reason in *why, if the set does not exist or this rank is not a member.
  std::shared_ptr<RankSet> Find(int number, Status* why) const;
  // Job ranks, ascending; empty if the set does not exist.
  std::vector<int> RanksOf(int number) const;
  // `ranks` must be ascending. Succeeds or fails on all ranks.
  Status AddSet(const std::vector<int>& ranks, int* number);
  // Of a job before this one, whose graphs have its number. It may have all ranks by now.
  Status AddSetAgain(const std::vector<int>& ranks, int number);
  Status RemoveSet(int number);
  // By the listed ranks alone, in ascending order, which `members` connects. `limit`: in seconds; 0
  // for SMDDP_TIMEOUT_SECONDS. Gets a set that all of them have left before, if there is one.
  Status AddSetOfMembers(const std::vector<int>& ranks, const Bootstrap& members, double limit,
                         int* number);
  // This rank no longer uses such a set, which stays, for another AddSetOfMembers.
  void LeaveSet(int number);
  // Fails on all ranks, showing both texts, unless all ranks pass the same text.
  Status Agree(const std::string& text);

  // The interface of the monitor.
  bool InspectAll(double seconds,
                  const std::function<void(Operation*, const std::vector<int>&)>& look) override;
  void InspectPlans(
      double seconds,
      const std::function<void(const std::string& waiting, double waited)>& look) override;
  double JoiningSince() const override { return everybody_->joining_since(); }
  Status InspectCycles(double seconds) override;
  void FailAll(const Status& failure) override;
  // Breaks the communicator on every rank of the job after an operation failed in any of its sets;
  // the monitors propagate the failure. `first`: see Broken.
  void Break(const Status& failure, bool first);
  // No job of other ranks can follow this one in this process.
  bool is_last() const {
    return context_->bootstrap == nullptr || !context_->bootstrap->CanFollow();
  }
  bool CanGoOn() const override {
    return context_->bootstrap != nullptr && context_->bootstrap->CanRetry();
  }
  bool failed() const { return failed_; }
  // Breaks the communicator on every rank because this one wants it: "rank N " and `why`.
  void Abort(const std::string& why);
  // Whom a set's explicit collective of this name waits for, in words; "" if it does not wait.
  std::string WaitsFor(int process_set, const std::string& name) const;
  // Whether ranks match by name, and it is the turn of an explicit collective that is not requested
  // here: the one of this name, or any if it is null.
  bool IsAwaited(int process_set, const char* name) const;

  Timeline* timeline() override { return &timeline_; }
  std::string FlightRecord() const override { return recorder_.Dump(); }
  std::string StatsJson() const;

 private:
  struct Entry {
    std::vector<int> ranks;
    std::shared_ptr<RankSet> set;  // null: this rank is not a member
    bool of_members = false;       // other ranks of the job do not know of it
    bool left = false;             // see LeaveSet
  };

  void AwaitTold() const;
  void AnnounceDeparture(const std::function<bool()>& stop);
  void WarnOfBinding() const;
  // All sets of which this rank is a member.
  std::vector<std::shared_ptr<RankSet>> OwnSets() const;
  Status CheckNewSet(const std::vector<int>& ranks) const;
  Status ChooseNumber(int* number);
  Status MakeSet(const std::string& what, const std::vector<int>& ranks, int number);
  Status AgreeOfMembers(const std::vector<int>& ranks, const Bootstrap& members,
                        const Bootstrap::Problem& problem, int* number, bool* left);
  int LeftSet(const std::vector<int>& ranks) const;
  bool IsOfAll(int number) const;
  Status Keep(int number, const std::vector<int>& ranks, const Status& connected,
              std::unique_ptr<Connection> connection, bool of_members);
  Status CheckRemoval(int number);
  // Allgather of bytes[r] bytes from each rank r of the job.
  Status Gather(const void* own, const std::vector<size_t>& bytes, void* all);

  std::unique_ptr<JobContext> context_;
  Selector selector_;
  FlightRecorder recorder_;
  Timeline& timeline_;
  const double spin_seconds_;
  const std::unique_ptr<RankSet> everybody_;
  std::unique_ptr<Monitor> monitor_;

  std::mutex changing_;            // held while a set is added or removed
  mutable std::mutex sets_mutex_;  // protects the members below
  std::map<int, Entry> sets_;      // all but number 0
  Status failure_;
  std::atomic<bool> failed_{false};
  std::atomic<double> told_at_{0};  // when other nodes know of the failure; 0: there is none
};

}  // namespace smddp
