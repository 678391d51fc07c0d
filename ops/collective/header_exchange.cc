#include "collective/header_exchange.h"

namespace smddp {

Status HeaderExchange::Poll(PeerGroup* owners, const SlotHeader& own, bool* held) {
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

bool HeaderExchange::AnnounceDeparture(PeerGroup* owners, int job_rank) {
  if (state_ != State::kNone && !gone_) return true;
  gone_ = true;
  SlotHeader own{};
  own.presence = Presence::kGone;
  own.root = job_rank;
  bool held = false;
  return !Poll(owners, own, &held).ok() || held;
}

Status GoneElsewhere(int job_rank, const std::string& title) {
  return {
      Code::kRemote,
      "rank " + std::to_string(job_rank) +
          ", on another node, no longer takes part: it has ended, called shutdown() or failed, and "
          "its own output says why. " +
          title +
          " waited for it. If it had fewer batches than the others, give all ranks the same "
          "number (smddp_tf.keras.shard does), or let it call join()"};
}

}  // namespace smddp
