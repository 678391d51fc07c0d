// Monitor: a thread that makes sure that no wait goes unreported.
//
// Every 50 ms it checks the node's posted failure, the peers' liveness and how long the current
// operations have been waiting. It also handles SIGTERM, which mpirun sends to the survivors as
// soon as a rank has died: the message about the death is written first.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/config.h"
#include "core/status.h"
#include "core/topology.h"
#include "engine/watch/watched.h"
#include "transport/alarm.h"
#include "transport/shm/shm_group.h"

namespace smddp {

class Monitor {
 public:
  // The topology, memory and alarm are those of all ranks of the job: a rank's liveness there holds
  // for every process set. All pointers must outlive the monitor.
  Monitor(Watched* watched, const Config& config, const Topology& topology, ShmGroup* shm,
          Alarm* alarm);

  // Returns once this rank counts as alive on its node. Throws std::system_error if there can be no
  // more threads.
  void Start();
  // Marks this rank as having left the node, and stops the thread.
  void Stop();

 private:
  static constexpr int kElsewhere = -1;

  void Loop();
  void GuardedTick(double seconds);
  void Tick(double seconds);
  void CheckOperation(Operation* operation, const std::vector<int>& missing, Status* failure);
  void WarnOfStall(const Operation& operation, const std::vector<int>& missing,
                   bool elsewhere) const;
  Status DeathOf(const Operation& operation, int rank) const;
  Status SilenceOf(const Operation& operation, int rank) const;
  double LimitOf(const Operation& operation) const;
  std::string DescribeLimit(const Operation& operation) const;
  Status Timeout(const Operation& operation, const std::vector<int>& missing, bool elsewhere) const;
  void CheckPlans(double seconds, Status* failure);
  void NoteInterrupt(const std::string& what, double since);
  void CheckInterrupt(Status* failure);
  void Break(const Status& own);
  void ListenToNodes();
  // A rank's place among those of this node, or kElsewhere.
  int LocalRank(int job_rank) const;
  bool GoneFor(int job_rank, double seconds) const;
  bool HasLeft(int job_rank) const;
  bool StillFor(int job_rank, double seconds) const;
  bool StandsStill(int job_rank) const;
  std::vector<int> Culprits(const std::vector<int>& missing) const;
  void UpdatePeers(double seconds);
  void AnswerTermination();
  std::string DescribeTermination(const Operation& operation,
                                  const std::vector<int>& missing) const;
  std::string MiddleOfCollective() const;
  std::string LastCollectives() const;
  std::string Elsewhere() const;

  Watched* watched_;
  const Config& config_;
  const Topology& topo_;
  ShmGroup* shm_;
  Alarm* alarm_;                      // may be null
  std::vector<double> gone_seconds_;  // by local rank; < 0: still here
  // By local rank: how often its monitor had looked, and how long that has not changed.
  std::vector<uint64_t> beats_;
  std::vector<double> still_seconds_;
  bool broken_ = false;
  Status broken_by_;
  // SIGINT: when it came (0: it did not), what this rank has waited for since before, and whether
  // the script wants that to fail.
  double interrupted_at_ = 0;
  std::string interrupted_;
  std::shared_ptr<std::atomic<int>> may_interrupt_;
  double unflushed_ = 0;  // seconds since the timeline was flushed
  std::atomic<bool> stopping_{false};
  std::atomic<bool> alive_{false};
  std::thread thread_;
};

}  // namespace smddp
