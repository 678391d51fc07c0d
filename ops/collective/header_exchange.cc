#include "collective/header_exchange.h"

#include <cstring>

namespace smddp {
namespace {

constexpr size_t kMessageBytes = sizeof(SlotHeader) + HeaderExchange::kPayloadBytes;

}  // namespace

Status HeaderExchange::Poll(PeerGroup* owners, const SlotHeader& own, bool* held,
                            const Payload& payload) {
  size_t size = static_cast<size_t>(owners->size());
  if (state_ == State::kNone) {
    char* told = owners->Memory(kMessageBytes * (size + 1));
    std::memcpy(told, &own, sizeof own);
    if (payload) payload(told + sizeof own);
    Status started = owners->StartAllgather(told, kMessageBytes, told + kMessageBytes);
    if (!started.ok()) return started;
    told_ = told + kMessageBytes;
    state_ = State::kStarted;
  }
  if (state_ == State::kStarted) {
    bool done = false;
    Status tested = owners->Test(&done);
    if (!tested.ok()) return tested;
    if (done) {
      headers_.resize(size);
      payloads_.resize(size * kPayloadBytes);
      for (size_t node = 0; node < size; ++node) {
        const char* message = told_ + node * kMessageBytes;
        std::memcpy(&headers_[node], message, sizeof own);
        std::memcpy(&payloads_[node * kPayloadBytes], message + sizeof own, kPayloadBytes);
      }
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
