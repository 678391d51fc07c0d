// A simulated job: nodes of heap memory, a network, and on each rank a script that runs the program
// through the real engine. What the library promises is checked as it happens.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "buffers.h"
#include "devices.h"
#include "engine/communicator.h"
#include "network.h"
#include "program.h"
#include "scheduler.h"

namespace smddp_sim {

class Job {
 public:
  explicit Job(const Program& program, bool trace);
  ~Job();
  // What went wrong, a line each; empty: nothing.
  std::vector<std::string> Run();
  uint64_t steps() const { return scheduler_.steps(); }
  uint64_t preemptions() const { return scheduler_.preemptions(); }
  const SimDevices& devices() const { return devices_; }

 private:
  friend class Script;
  struct Node;

  void MakeNodes();
  std::unique_ptr<smddp::Connection> Connect(int rank);
  void Strike(const Fault& fault);
  void Begin(int rank, int item);  // sets off what is to happen then
  // Something that explains failures has happened.
  bool Broken() const { return broken_at_ > 0; }
  void Complain(const std::string& what);
  void EndWhoJoined();
  bool AlarmsWork() const;
  bool EndsAnyhow() const;
  bool AllEnd() const;  // or are dead
  void CheckDeaths();
  void CheckSlots();
  void CheckEnd(Scheduler::End end);

  const Program& program_;
  Scheduler scheduler_;
  Network network_;
  SimDevices devices_;
  std::vector<std::unique_ptr<smddp::Topology>> topologies_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::vector<std::unique_ptr<smddp::PeerGroup>>> world_;  // by channel and rank
  std::vector<std::vector<std::unique_ptr<smddp::PeerGroup>>> cross_;
  std::vector<std::unique_ptr<smddp::Alarm>> alarms_;  // by rank
  std::deque<class Script> scripts_;
  std::vector<std::string> complaints_;
  double broken_at_ = 0;
  std::vector<std::vector<int>> last_joined_;  // by item: what each rank was told
  bool trace_;
};

}  // namespace smddp_sim
