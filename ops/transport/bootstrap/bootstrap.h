// Bootstrap: how the ranks of a job find each other while they start, before they share memory.
//
// MPI is one (transport/mpi/mpi_library.h), functions of the caller's another (callbacks.h).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/status.h"
#include "transport/alarm.h"
#include "transport/peer_group.h"

namespace smddp {

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Of the MPI; "none" without one.
  virtual const std::string& name() const = 0;
  // Whether another job, with other ranks, can follow this one in the process.
  virtual bool CanFollow() const = 0;
  // Whether an init() that failed may be tried again: nothing of it is at work any more.
  virtual bool CanRetry() const = 0;

  // An error once a call that waits for other ranks should not wait any longer, which it returns
  // then. MPI may still be at work in that call, so this object must stay.
  using Problem = std::function<Status()>;
  // For start-up only. recv holds size() blocks.
  virtual Status Allgather(const void* send, int bytes, void* recv,
                           const Problem& problem) const = 0;
  // A barrier over all ranks; after an error it cannot be called again. *ending: a rank is in
  // Finalize instead.
  virtual Status MeetToBegin(const Problem& problem, bool* ending) = 0;
  // Another, of the ranks of the job, at the end of start-up.
  virtual Status MeetStarted(const Problem& problem) const = 0;
  // During start-up: sends all ranks the reason why this one fails alone, while they wait for it. A
  // rank that is told can no longer use the bootstrap.
  virtual void TellFailure(const std::string& why) const = 0;
  // What another rank has told; "" if none has.
  virtual std::string HeardFailure() const = 0;

  static constexpr int kNoColor = -32766;  // MPI_UNDEFINED, in Open MPI and in MPICH
  // From now on the job is only the ranks with the same color, in the order of their keys.
  virtual Status Restrict(int color, int key, const Problem& problem) = 0;

  // Why messages cannot travel between nodes; OK if they can.
  virtual Status BetweenNodes() const = 0;
  // Called by all ranks. Connects those with the same color, in the order of their keys, and leaves
  // null what a rank with kNoColor gets.
  virtual Status MakeGroup(int color, int key, const Problem& problem,
                           std::unique_ptr<PeerGroup>* group) const = 0;
  // Called by all ranks of the job; some are left with none. `firsts`: the first rank of each node.
  virtual Status MakeAlarm(const std::vector<int>& firsts, int node, const Problem& problem,
                           std::unique_ptr<Alarm>* alarm) const = 0;

  // Ends what init() began, once all ranks are here or `stop` returns true.
  virtual void Finalize(const std::function<bool()>& stop) = 0;
};

}  // namespace smddp
