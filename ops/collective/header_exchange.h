// HeaderExchange: the nodes of a job verify that they begin the same operation.
//
// Before each operation the owners of a share, one per node, exchange its header. A node whose
// ranks have all joined takes part before it knows which operation is next: the others learn that
// it has joined, and it learns which operation they began.
//
// A small payload travels in the same message, so it costs no exchange of its own. All messages
// have one size, because ranks that differ in what they do next must still be able to say so.
//
// Among few nodes each sends its message to all others. That is one hop, but n - 1 messages for
// each of n nodes, so among many they disseminate: in round k a node sends the messages that it has
// to the one 2^k before it, and gets as many from the one 2^k behind it. All nodes have all after
// log2(n) rounds:
//
//   node 0 of 5 has    0    then 0 1    then 0 1 2 3    then 0 1 2 3 4
//   and sends it to         4           3               1
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
  // What may travel with a header, so that those of many nodes do not become a burden: at most
  // 64 KiB from all of them.
  static size_t PayloadBytes(int nodes);
  // Writes up to PayloadBytes() that travel with the header.
  using Payload = std::function<void(char* to)>;

  // Sends this node's header once, then polls; sets *held when all headers have arrived. `payload`
  // is called when the header is sent.
  Status Poll(PeerGroup* owners, const SlotHeader& own, bool* held, const Payload& payload = {});
  // Indexed by node.
  const std::vector<SlotHeader>& headers() const { return headers_; }
  // What travelled with a node's header; undefined if its payload was not written.
  const char* payload(int node) const { return payloads_.data() + node * payload_bytes_; }
  // The operation uses the owners' group from now on, until Close().
  void Use() { state_ = State::kUsed; }
  // Whether a node's header has arrived in the exchange that is under way, or that was the last.
  bool Came(int node) const;
  // Ends the exchange; the next operation starts a new one.
  void Close() { state_ = State::kNone; }
  // Announces to the other nodes that `job_rank` has left. To be called until it returns true: they
  // have been notified, or it is too late because an operation is in progress.
  bool AnnounceDeparture(PeerGroup* owners, int job_rank);

  // Up to so many nodes send to all others. A hop between hosts takes as long as a node needs to
  // send and receive a few messages. All nodes need the same.
  int linear_nodes = 16;

 private:
  enum class State { kNone, kStarted, kHeld, kUsed };
  Status Start(PeerGroup* owners);
  Status StartRound(PeerGroup* owners);
  void Finish();
  // Where a node's message lies.
  char* Message(size_t node) const;

  State state_ = State::kNone;
  bool gone_ = false;
  size_t MessageBytes() const { return sizeof(SlotHeader) + payload_bytes_; }
  bool disseminates_ = false;
  // In the group's memory, until the exchange completes: the own message, then those of all nodes;
  // in a dissemination the own one, then those of the nodes behind this one.
  char* messages_ = nullptr;
  size_t rank_ = 0, size_ = 0;  // of the owners' group
  size_t have_ = 0;             // messages that are there, or under way
  size_t payload_bytes_ = 0;
  std::vector<SlotHeader> headers_;
  std::vector<char> payloads_;
};

// What to do about a rank that has left, in good order but while others wait for it.
constexpr char kEndedEarly[] =
    "If it had fewer batches than the others, give all ranks the same number (smddp_tf.keras.shard "
    "does), or let it call join(). If it stopped training alone (Keras's own EarlyStopping or "
    "TerminateOnNaN, model.stop_training), use those of smddp_tf.keras.callbacks, or AgreeOnStop";

// The error of a rank that waited for `job_rank`, which has left, on another node.
Status GoneElsewhere(int job_rank, const std::string& title);

}  // namespace smddp
