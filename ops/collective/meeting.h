// How the nodes of a job find out that they begin the same operation.
//
// Before each operation the owners of a share, one a node, tell each other its header. A node whose
// ranks have all joined takes part before it knows which operation will come; so all learn that it
// has joined, and it learns what the others began.
#pragma once

#include <vector>

#include "core/status.h"
#include "transport/peer_group.h"
#include "transport/shm_group.h"

namespace smddp {

class Meeting {
 public:
  // Tells `own` unless this node has told before, then looks whether all have. True once they have,
  // until Leave().
  Status Hold(PeerGroup* owners, const SlotHeader& own, bool* held);
  // By node.
  const std::vector<SlotHeader>& headers() const { return headers_; }
  // The next operation has a meeting of its own.
  void Leave() { state_ = State::kNone; }

 private:
  enum class State { kNone, kStarted, kHeld };
  State state_ = State::kNone;
  SlotHeader own_;
  std::vector<SlotHeader> headers_;
};

}  // namespace smddp
