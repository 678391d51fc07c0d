// Detects deadlocks between ranks of a node that wait for each other in different channels.
//
// Rank A waits for rank B in one channel of a set, B waits for A in the other, and neither has
// begun the operation that the other waits for: one of them took another path through the program.
// Every rank reports in shared memory where it is stuck, so a deadlock is found long before the
// timeout. Between nodes it is left to the timeout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "engine/channel.h"

namespace smddp {

class DeadlockDetector {
 public:
  DeadlockDetector(const Topology* topology, const ShmGroup* shm) : topo_(topology), shm_(shm) {}

  // Called periodically by the monitor; `seconds` is the time since the last call. Returns an error
  // once a deadlock is certain.
  Status Look(double seconds, Channel* direct, Channel* gradients);

 private:
  // This rank's state in one channel.
  struct Own {
    ChannelState state = ChannelState::kIdle;
    std::string title;
    std::vector<int> missing;  // job ranks
  };
  Own Report(int index, const Channel::Glance& glance, Channel* channel) const;
  bool Moved();
  Status CycleWith(int peer, int index, const Own& own) const;

  const Topology* topo_;
  const ShmGroup* shm_;
  std::vector<uint64_t> counters_;  // of all ranks of the node in both channels, at the last look
  double still_ = 0;                // seconds since they last changed
};

}  // namespace smddp
