// The network between simulated nodes: each exchange arrives when the schedule says, or never. It
// stands in for the MPI library below MpiGroup, with Open MPI's rules of buffers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "scheduler.h"
#include "transport/alarm.h"
#include "transport/peer_group.h"

namespace smddp_sim {

struct NetworkStyle {
  double longest_delay = 1e-3;  // seconds
  // A receiver's memory is written as soon as a message arrives, not only while it looks (Test).
  bool writes_at_any_time = false;
};

class Network {
 public:
  Network(Scheduler* scheduler, const NetworkStyle& style) : scheduler_(scheduler), style_(style) {}

  // A group for each listed rank of the job, all connected.
  std::vector<std::unique_ptr<smddp::PeerGroup>> Connect(const std::vector<int>& ranks);
  // An alarm for each rank; the first rank of a node hears.
  std::vector<std::unique_ptr<smddp::Alarm>> ConnectAlarms(
      const std::vector<std::vector<int>>& nodes);
  // From now on the rank's calls fail, sooner or later.
  void Break(int rank);
  bool broken(int rank) const { return broken_[rank]; }

  Scheduler* scheduler() const { return scheduler_; }
  const NetworkStyle& style() const { return style_; }
  // How a caller broke the rules of PeerGroup; "" if nobody did.
  const std::string& abuse() const { return abuse_; }
  void ReportAbuse(const std::string& text) {
    if (abuse_.empty()) abuse_ = text;
  }

 private:
  Scheduler* scheduler_;
  NetworkStyle style_;
  std::vector<char> broken_ = std::vector<char>(64, 0);
  std::string abuse_;
};

}  // namespace smddp_sim
