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
    rank_ = static_cast<size_t>(owners->rank());
    size_ = static_cast<size_t>(owners->size());
    payload_bytes_ = PayloadBytes(owners->size());
    messages_ = owners->Memory(MessageBytes() * (size_ + 1));
    // See Came().
    for (size_t i = 1; i <= size_; ++i) std::memset(messages_ + i * MessageBytes(), 0, sizeof own);
    std::memcpy(messages_, &own, sizeof own);
    if (payload) payload(messages_ + sizeof own);
    disseminates_ = owners->size() > linear_nodes;
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
      Finish();
      state_ = State::kHeld;
    }
  }
  *held = state_ == State::kHeld;
  return {};
}

Status HeaderExchange::Start(PeerGroup* owners) {
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

// Where a header will arrive there were zeros, and no header is all zeros: it has a signature, or
// says that a node has joined or left.
bool HeaderExchange::Came(int node) const {
  if (state_ != State::kStarted) return state_ != State::kNone;
  static const SlotHeader none{};
  return std::memcmp(Message(static_cast<size_t>(node)), &none, sizeof none) != 0;
}

char* HeaderExchange::Message(size_t node) const {
  size_t place = disseminates_ ? (node + size_ - rank_) % size_ : node + 1;
  return messages_ + place * MessageBytes();
}

void HeaderExchange::Finish() {
  headers_.resize(size_);
  payloads_.resize(size_ * payload_bytes_);
  for (size_t node = 0; node < size_; ++node) {
    const char* message = Message(node);
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
