#include "collective/meeting.h"

namespace smddp {

Status Meeting::Hold(PeerGroup* owners, const SlotHeader& own, bool* held) {
  if (state_ == State::kNone) {
    size_t size = static_cast<size_t>(owners->size());
    auto* told = reinterpret_cast<SlotHeader*>(owners->Memory(sizeof own * (size + 1)));
    *told = own;
    Status started = owners->StartAllgather(told, sizeof own, told + 1);
    if (!started.ok()) return started;
    told_ = told + 1;
    state_ = State::kStarted;
  }
  if (state_ == State::kStarted) {
    bool done = false;
    Status tested = owners->Test(&done);
    if (!tested.ok()) return tested;
    if (done) {
      headers_.assign(told_, told_ + owners->size());
      state_ = State::kHeld;
    }
  }
  *held = state_ == State::kHeld;
  return {};
}

bool Meeting::SayGone(PeerGroup* owners, int world_rank) {
  if (state_ != State::kNone && !gone_) return true;
  gone_ = true;
  SlotHeader own{};
  own.presence = Presence::kGone;
  own.root = world_rank;
  bool held = false;
  return !Hold(owners, own, &held).ok() || held;
}

Status GoneElsewhere(int world_rank, const std::string& title) {
  return {
      Code::kRemote,
      "rank " + std::to_string(world_rank) +
          ", on another node, takes part no more: it has ended, called shutdown() or failed, and "
          "its own output says why. " +
          title +
          " waited for it. If it had fewer batches than the others, give all ranks the same "
          "number (smddp_tf.keras.shard does), or let it call join()"};
}

}  // namespace smddp
