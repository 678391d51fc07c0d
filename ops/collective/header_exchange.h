// How the nodes of a job find out that they begin the same operation.
//
// Before each operation the owners of a share, one a node, tell each other its header. A node whose
// ranks have all joined takes part before it knows which operation will come; so all learn that it
// has joined, and it learns what the others began.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "transport/peer_group.h"
#include "transport/shm/shm_group.h"

namespace smddp {

class HeaderExchange {
 public:
  // Tells `own` unless this node has told before, then looks whether all have. True once they have,
  // until Close().
  Status Poll(PeerGroup* owners, const SlotHeader& own, bool* held);
  // By node.
  const std::vector<SlotHeader>& headers() const { return headers_; }
  // The operation needs the owners' group for itself, until Close.
  void Use() { state_ = State::kUsed; }
  // The next operation has a meeting of its own.
  void Close() { state_ = State::kNone; }
  // Tells the other nodes that `job_rank` takes part no more. Called until true: they know, or it
  // is too late to tell them, in the middle of an operation.
  bool AnnounceDeparture(PeerGroup* owners, int job_rank);

 private:
  enum class State { kNone, kStarted, kHeld, kUsed };
  State state_ = State::kNone;
  bool gone_ = false;
  const SlotHeader* told_ = nullptr;  // in the group's memory, until the meeting is held
  std::vector<SlotHeader> headers_;
};

// What a rank of another node fails with that waited for it.
Status GoneElsewhere(int job_rank, const std::string& title);

}  // namespace smddp
