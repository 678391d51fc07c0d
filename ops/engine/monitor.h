// Monitor: a thread that sees to it that no wait is silent.
//
// Every 50 ms it looks at the node's shared failure, at the peers' liveness and at how long the
// current operations have been waiting. It also answers SIGTERM, which mpirun sends to the
// survivors as soon as one rank has died: the sentence about the death is written first.
#pragma once

#include <semaphore.h>

#include <atomic>
#include <thread>

#include "core/status.h"
#include "engine/world.h"

namespace smddp {

class Communicator;
struct Operation;

class Monitor {
 public:
  Monitor(Communicator* communicator, World* world);

  // Returns once every rank of the node is alive and watched.
  Status Start();
  // Leaves the node, and ends the thread.
  void Stop();

 private:
  void Loop();
  void Tick(double seconds);
  void CheckOperation(Operation* operation, const std::vector<int>& missing, Status* failure);
  void WarnOfStall(const Operation& operation, const std::vector<int>& missing) const;
  Status DeathOf(const Operation& operation, int rank) const;
  Status Timeout(const Operation& operation, const std::vector<int>& missing) const;
  void Break(const Status& failure);
  bool GoneFor(int world_rank, double seconds) const;
  void UpdatePeers(double seconds);
  void AnswerTermination();
  bool JoinNode();

  Communicator* communicator_;
  World* world_;
  std::vector<double> gone_seconds_;  // by local rank; < 0: still here
  bool broken_ = false;
  double plan_wait_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<int> joined_{0};  // 1: yes, -1: no
  std::thread thread_;
};

}  // namespace smddp
