// HeaderExchange: the nodes of a job verify that they begin the same operation.
//
// Before each operation the owners of a share, one per node, exchange its header. A node whose
// ranks have all joined takes part before it knows which operation is next: the others learn that
// it has joined, and it learns which operation they began.
//
// A small payload travels in the same message, so it costs no exchange of its own. All messages
// have one size, because ranks that differ in what they do next must still be able to say so.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/status.h"
#include "transport/peer_group.h"
#include "transport/shm/shm_group.h"

namespace smddp {

class HeaderExchange {
 public:
  static constexpr size_t kPayloadBytes = 1024;
  // Writes up to kPayloadBytes that travel with the header.
  using Payload = std::function<void(char* to)>;

  // Sends this node's header once, then polls; sets *held when all headers have arrived. `payload`
  // is called when the header is sent.
  Status Poll(PeerGroup* owners, const SlotHeader& own, bool* held, const Payload& payload = {});
  // Indexed by node.
  const std::vector<SlotHeader>& headers() const { return headers_; }
  // What travelled with a node's header; undefined if its payload was not written.
  const char* payload(int node) const { return payloads_.data() + node * kPayloadBytes; }
  // The operation uses the owners' group from now on, until Close().
  void Use() { state_ = State::kUsed; }
  // Ends the exchange; the next operation starts a new one.
  void Close() { state_ = State::kNone; }
  // Announces to the other nodes that `job_rank` has left. To be called until it returns true: they
  // have been notified, or it is too late because an operation is in progress.
  bool AnnounceDeparture(PeerGroup* owners, int job_rank);

 private:
  enum class State { kNone, kStarted, kHeld, kUsed };
  State state_ = State::kNone;
  bool gone_ = false;
  const char* told_ = nullptr;  // in the group's memory, until the exchange completes
  std::vector<SlotHeader> headers_;
  std::vector<char> payloads_;
};

// The error of a rank that waited for `job_rank`, which has left, on another node.
Status GoneElsewhere(int job_rank, const std::string& title);

}  // namespace smddp
