// Finds ranks that wait for each other in different channels, and so for ever.
//
// Rank A waits for rank B in one channel of a set, B for A in the other, and neither has begun what
// the other waits for: one of them took another path through the program. Every rank reports in
// shared memory where it stands still; whoever sees such a pair knows at once what otherwise the
// timeout would find. It is seen among the ranks of a node; between nodes it is left to the
// timeout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "engine/channel.h"

namespace smddp {

class CycleWatch {
 public:
  CycleWatch(const Topology* topology, const ShmGroup* shm) : topo_(topology), shm_(shm) {}

  // For the monitor, every now and then; `seconds` have passed since the last time. Not OK once a
  // cycle has been seen that will not resolve.
  Status Look(double seconds, Channel* direct, Channel* gradients);

 private:
  // Where this rank stands in a channel.
  struct Own {
    ChannelState state = ChannelState::kIdle;
    std::string title;
    std::vector<int> missing;  // job ranks
  };
  Own Report(int index, Channel* channel) const;
  bool Moved();
  Status CycleWith(int peer, int index, const Own& own) const;

  const Topology* topo_;
  const ShmGroup* shm_;
  std::vector<uint64_t> counters_;  // of all ranks of the node in both channels, at the last look
  double still_ = 0;                // seconds for which they have not moved
};

}  // namespace smddp
