// Messages: what one rank of a set sends to another, besides the collectives.
//
// A sender offers its bytes in a slot of its own (MessageSlot). The receiver reads them where they
// are, with a single copy, and says so in the slot. Nothing is kept in between: a message is over
// once both ranks have asked for it, as with NCCL and gloo. Between two ranks, messages of one name
// are matched in the order in which each rank asks. A rank has messages if its set is on one node,
// whose ranks can read each other's memory.
//
// A thread that waits for one message advances all of this rank's. Those for which no thread waits
// are advanced by a thread of their own, the listener.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/status.h"
#include "core/topology.h"
#include "engine/channel.h"
#include "transport/shm/peer_memory.h"
#include "transport/shm/shm_group.h"

namespace smddp {

struct Message {
  static constexpr int kAnyRank = -1;

  // `peer`: of the set. `name`: by which ranks match messages. `timeout`: see Request. `data` must
  // stay valid until the message is over.
  Message(bool sends, int peer, void* data, size_t bytes, std::string name, double timeout);

  const bool sends;
  const int peer;  // of the set; kAnyRank: the first that sends
  const size_t bytes;

  // Whether it has ended. Then `outcome` is final, and `source` the rank that has sent it.
  std::atomic<bool> over{false};
  Status outcome;
  int source = kAnyRank;

 private:
  friend class Messages;
  enum class State { kAsked, kOffered, kReading, kLost };

  State state = State::kAsked;
  Operation operation;  // as the monitor sees it
  std::vector<PeerBytes> wanted;
  uint64_t serial = 0;  // of a sender's message
  int slot = 0;         // once it is offered
  int waiters = 0;      // threads that wait for it
};

class Messages {
 public:
  // `process_set`: its number. The pointers must outlive this. `broken`: called if the listener has
  // no memory left; it must fail the job.
  Messages(int process_set, const Topology* topology, const ShmGroup* shm, bool reads_peers,
           std::function<void(const Status&)> broken);

  // The same on all ranks of the set.
  bool possible() const { return possible_; }
  // Throws std::system_error if there can be no more threads.
  void Start(const std::shared_ptr<Message>& message);
  // Makes all progress that is possible. Returns true if there was any.
  bool Advance();
  // While a thread waits, the monitor sees the message.
  void BeginWait(Message* message);
  void EndWait(Message* message);
  // Ends a message, unless its bytes are being read.
  void Withdraw(Message* message, const Status& reason);
  // Fails all messages, those to come too.
  void Fail(const Status& failure);
  // Ends the listener.
  void Stop();
  // For the monitor: adds `seconds` to the time for which messages have been waited for.
  void Inspect(double seconds,
               const std::function<void(Operation*, const std::vector<int>&)>& look);

 private:
  using List = std::list<std::shared_ptr<Message>>;
  // A slot of a peer that matches a receive.
  struct Match {
    int peer = Message::kAnyRank;
    MessageSlot* slot = nullptr;
    uint64_t serial = 0;
  };

  MessageSlot& OwnSlot(const Message& message) const;
  // Changes the state of a message's slot, unless it is not this one.
  static bool Change(MessageSlot* slot, uint64_t serial, Offer from, Offer to);
  // These need the lock.
  bool AdvanceSends();
  bool OfferNext(Message* message);
  bool Answered(Message* message);
  std::shared_ptr<Message> ClaimNext(Match* match);
  Match Find(const Message& message) const;
  Match FindOnce(const Message& message) const;
  const std::shared_ptr<Message>& FirstFor(const Match& match, uint64_t key) const;
  void EndReading(Message* message, const Match& match, const Status& read);
  Status TooLong(const Message& message, int sender, int receiver, uint64_t sent,
                 uint64_t room) const;
  void End(Message* message, const Status& outcome);
  bool IsRead(const Message& message, Offer after) const;
  void Tidy();
  std::vector<int> Missing(const Message& message) const;

  void WakeListener();
  void Listen();

  const int process_set_;
  const Topology* topology_;
  const ShmGroup* shm_;
  const bool possible_;
  const std::function<void(const Status&)> broken_;

  std::mutex mutex_;  // protects the members below, and messages that are not over
  List sends_, receives_;
  uint64_t serial_ = 0;
  Status failure_;

  std::atomic<int> unattended_{0};  // messages that need this rank's steps, and have no waiters
  std::atomic<double> started_{0};  // when the last message was
  std::atomic<bool> stopping_{false};
  std::mutex listening_mutex_;  // held while the listener begins and ends
  std::condition_variable listener_wanted_;
  std::atomic<bool> listener_idle_{false};
  std::thread listener_;
};

}  // namespace smddp
