#include "collective/meeting.h"

namespace smddp {

Status Meeting::Hold(PeerGroup* owners, const SlotHeader& own, bool* held) {
  if (state_ == State::kNone) {
    own_ = own;
    headers_.resize(owners->size());
    Status started = owners->StartAllgather(&own_, sizeof own_, headers_.data());
    if (!started.ok()) return started;
    state_ = State::kStarted;
  }
  if (state_ == State::kStarted) {
    bool done = false;
    Status tested = owners->Test(&done);
    if (!tested.ok()) return tested;
    if (done) state_ = State::kHeld;
  }
  *held = state_ == State::kHeld;
  return {};
}

}  // namespace smddp
