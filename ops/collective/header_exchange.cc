#include "collective/header_exchange.h"

#include <algorithm>
#include <cstring>

namespace smddp {

size_t HeaderExchange::PayloadBytes(int nodes) {
  constexpr size_t kAll = 64 << 10, kMost = 1024, kUnit = 64;
  return std::clamp(kAll / static_cast<size_t>(nodes) / kUnit * kUnit, kUnit, kMost);
}

Status HeaderExchange::Poll(PeerGroup* owners, const SlotHeader& own, bool* held,
                            const Payload& payload) {
  if (state_ == State::kNone) {
    size_t size = static_cast<size_t>(owners->size());
    payload_bytes_ = PayloadBytes(owners->size());
    messages_ = owners->Memory((sizeof own + payload_bytes_) * (size + 1));
    std::memcpy(messages_, &own, sizeof own);
    if (payload) payload(messages_ + sizeof own);
    Status started = Start(owners);
    if (!started.ok()) return started;
    state_ = State::kStarted;
  }
  while (state_ == State::kStarted) {
    bool done = false;
    Status status = owners->Test(&done);
    if (!status.ok() || !done) return status;
    if (have_ < static_cast<size_t>(owners->size())) {
      status = StartRound(owners);
      if (!status.ok()) return status;
    } else {
      Finish(*owners);
      state_ = State::kHeld;
    }
  }
  *held = state_ == State::kHeld;
  return {};
}

Status HeaderExchange::Start(PeerGroup* owners) {
  disseminates_ = owners->size() > linear_nodes;
  have_ = 1;
  if (disseminates_) return StartRound(owners);
  have_ = static_cast<size_t>(owners->size());
  return owners->StartAllgather(messages_, MessageBytes(), messages_ + MessageBytes());
}

// Sends the messages that this node has, or as many as the others lack, and gets as many.
Status HeaderExchange::StartRound(PeerGroup* owners) {
  size_t size = static_cast<size_t>(owners->size()), rank = static_cast<size_t>(owners->rank());
  size_t count = std::min(have_, size - have_);
  std::vector<size_t> send(size), receive(size);
  send[(rank + size - have_) % size] = count * MessageBytes();
  receive[(rank + have_) % size] = count * MessageBytes();
  char* behind = messages_ + have_ * MessageBytes();
  have_ += count;
  return owners->StartAlltoallV(messages_, send, behind, receive);
}

void HeaderExchange::Finish(const PeerGroup& owners) {
  size_t size = static_cast<size_t>(owners.size()), rank = static_cast<size_t>(owners.rank());
  headers_.resize(size);
  payloads_.resize(size * payload_bytes_);
  for (size_t i = 0; i < size; ++i) {
    size_t node = disseminates_ ? (rank + i) % size : i;
    const char* message = messages_ + (disseminates_ ? i : i + 1) * MessageBytes();
    std::memcpy(&headers_[node], message, sizeof(SlotHeader));
    std::memcpy(&payloads_[node * payload_bytes_], message + sizeof(SlotHeader), payload_bytes_);
  }
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
          title + " waited for it. " + kEndedEarly};
}

}  // namespace smddp
