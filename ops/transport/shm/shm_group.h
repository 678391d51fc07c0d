// ShmGroup: the ranks of one node, connected by a shared-memory segment.
//
// The segment holds, for each rank, a cell (liveness, doorbells, progress counters) and, for each
// channel, kSlots staging slots of chunk_bytes and a report on every peer. A channel is an ordered
// stream of chunks, numbered from 0 and never reused; chunk k uses slot k % kSlots. A counter is
// the number of chunks that a rank has finished in a phase, so it only grows and has a single
// writer, and a wait is "peer's counter > k". The cells are plain memory, so threads of one process
// can share them too, which the contract tests use.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/ranges.h"

namespace smddp {

constexpr int kChannels = 2;
constexpr int kSlots = 4;
constexpr int kMessageSlots = 1024;  // of a rank; more messages wait in their sender
constexpr size_t kDetailBytes = 64 << 10;
constexpr size_t kFailureBytes = 4096;
constexpr size_t kTitleBytes = 248;
constexpr size_t kExceptionBytes = 256;

// Progress of one rank on one channel; see collective/pipeline.h for the phases.
struct alignas(64) ChannelCell {
  std::atomic<uint64_t> staged;
  std::atomic<uint64_t> combined;
  std::atomic<uint64_t> unpacked;
  // Numbers of mismatch reports: whose text in RankCell::detail has been posted, and been read.
  std::atomic<uint64_t> detail_posted;
  std::atomic<uint64_t> detail_read;
  // Set when operations are aborted: their tensors are no longer lent to peers.
  std::atomic<uint64_t> given_up;
  // How the chunk in each slot was written; see collective/staging.h. Stored before `staged`, in
  // the same line.
  std::atomic<uint8_t> written[kSlots];
  // Of the node's first rank: the round of joins in which this node says what comes next, because
  // all ranks of the nodes before it have joined; see engine/channel.h.
  std::atomic<uint32_t> leads_round;
  // That this rank waits for the operation that begins with the chunk before this one, of which the
  // first rank, which has joined, is to ask the other nodes.
  std::atomic<uint64_t> asks_for;
};
static_assert(sizeof(ChannelCell) == 64, "a line of the cache");

constexpr int kWritings = 2;        // through the cache, and past it
constexpr int kOperationKinds = 4;  // see StorePolicy::KindOf

// What reading one peer's slots costs a rank, in nanoseconds per KiB; 0: not measured. Written by
// the reader, read by the peer. See collective/staging.h.
struct alignas(32) PullReport {
  std::atomic<float> cost[kOperationKinds][kWritings];
};

enum class PeerState : int { kJoining = 0, kAlive = 1, kLeft = 2, kDead = 3 };

// A rank's report on its operation in a mismatch, beside the text in RankCell::detail.
struct MismatchReport {
  uint64_t key;  // Request::Key()
  bool threads;  // several threads of this rank, or a TF1 session, may run collectives at once
  bool waited;   // it waited for the operation that the first rank has begun, and gave up
};

// A rank's state in a channel; see engine/deadlock_detector.h.
enum class ChannelState : int { kIdle = 0, kBusy = 1, kStuck = 2 };
struct alignas(64) ChannelReport {
  std::atomic<ChannelState> state;
  char title[kTitleBytes];  // of the operation, while kStuck
};

// What has become of a message that its sender offers in a slot; see engine/messages.h.
enum class Offer : uint8_t {
  kNone = 0,        // the slot is free
  kOpen = 1,        // the bytes may be read
  kClaimed = 2,     // the receiver reads them
  kTaken = 3,       // it has read them
  kTooLong = 4,     // it has room for fewer bytes, and has read none
  kUnreadable = 5,  // it cannot read this rank's memory
  kWithdrawn = 6,   // the sender has given up, and what has been read may be anything
};

// Written by the sender, but for what becomes of it and `room`. A receiver may look at a slot while
// it gets another message, so it reads `state` before and after.
struct alignas(64) MessageSlot {
  std::atomic<uint64_t> state;  // the message's number and the Offer; see MessageState
  std::atomic<int32_t> target;  // local rank
  int32_t pid;                  // the sender's, in whose memory the bytes are
  std::atomic<uint64_t> key;    // of the message's name
  uint64_t address, bytes;
  uint64_t room;  // of the receiver, if the message is too long
};
// `serial` grows with each message of the sender.
inline uint64_t MessageState(uint64_t serial, Offer offer) {
  return serial << 8 | static_cast<uint64_t>(offer);
}
inline Offer OfferIn(uint64_t state) { return static_cast<Offer>(state & 0xff); }
static_assert(sizeof(MessageSlot) == 64, "a line of the cache");

struct Doorbell {
  alignas(64) std::atomic<uint32_t> word;  // a futex
  std::atomic<uint32_t> sleepers;
};
// What a thread of a rank sleeps for: any step of the collectives and messages that threads wait
// for, or messages that no thread waits for.
enum class Bell { kWaits, kMessages };

struct RankCell {
  alignas(64) pthread_mutex_t alive;  // robust: the kernel marks it when its owner dies
  std::atomic<int> state;             // PeerState
  int pid;
  int job_rank;
  Doorbell doorbells[2];  // by Bell
  ChannelCell channels[kChannels];
  std::atomic<uint32_t> offers;  // how many of the first slots may be in use
  MessageSlot messages[kMessageSlots];
  std::atomic<uint64_t> joins;  // join tickets taken by this rank
  std::atomic<uint64_t> beats;  // how often its monitor has looked
  MismatchReport mismatches[kChannels];
  ChannelReport reports[kChannels];
  char detail[kChannels][kDetailBytes];
  char exception[kExceptionBytes];  // that it ends with; before kLeft
};

// Who wrote a header.
enum class Presence : int32_t {
  kHere = 0,
  kJoined = 1,   // in a slot: a joined rank; between nodes: a node whose ranks have all joined
  kGone = 2,     // between nodes: the rank has exited or failed
  kFollows = 3,  // between nodes: the node asks which operation the first node has begun
};

struct alignas(64) SlotHeader {
  uint64_t signature;  // of the operation that starts with this chunk
  uint64_t key;        // of the operation's name; see Request::Key()
  // 1: mismatch with another node; 2: this rank could not read a peer (single_copy.cc)
  uint8_t verdict;
  // The rest is for joined ranks, which take part based on it: collective/joined.h.
  uint8_t kind, dtype, op;
  int32_t root;
  Presence presence;
  uint32_t join_round;  // of a joined rank, which serves only peers that joined in the same round
  uint64_t count, num_chunks, run;
  double scale;  // of the result
};
static_assert(sizeof(SlotHeader) == 64, "a line of the cache");

class ShmGroup {
 public:
  static size_t BytesNeeded(int local_size, size_t chunk_bytes);
  // The part of the memory that a rank commits: its slots, in whole pages, and on the first rank
  // all that lies before the slots.
  static Range PartOf(int local_rank, int local_size, size_t chunk_bytes);
  // The sizes of all structures in the memory: ranks whose libraries differ in them cannot share
  // it.
  static std::string Layout();

  // `memory` must be zeroed, at least BytesNeeded() long, and must outlive the group.
  ShmGroup(void* memory, int local_rank, int local_size, size_t chunk_bytes);

  int rank() const { return rank_; }
  int size() const { return size_; }
  size_t chunk_bytes() const { return chunk_bytes_; }

  RankCell& cell(int r) const { return cells_[r]; }
  ChannelCell& channel_cell(int r, int channel) const { return cells_[r].channels[channel]; }
  SlotHeader& header(int r, int channel, uint64_t chunk) const;
  char* slot(int r, int channel, uint64_t chunk) const;
  PullReport& pull_report(int reader, int channel, int writer) const;
  // Grows when any rank, this one too, has come further in the channel.
  uint64_t Steps(int channel) const;

  // Liveness. Call MarkAlive on a thread that lives as long as the group is used, because the
  // kernel ties the robust mutex to that thread.
  void MarkAlive(int job_rank);
  void Leave();
  PeerState Peer(int r) const;
  // What this rank's process ends with; longer text is cut.
  void NoteException(const std::string& text) const;
  // What a rank that has left ended with; empty if with no exception that is known of.
  std::string Exception(int r) const;

  // Wakes sleeping peers; called after publishing a counter.
  void RingPeers() const;
  // Wakes other threads of this rank that wait for an operation which this thread has completed.
  void RingSelf() const;
  // Wakes the threads of one rank that sleep for what a message's slot now says.
  void RingForMessage(int r) const;
  // To sleep: call Prepare, check once more for work, then call Sleep or Cancel.
  uint32_t PrepareSleep(Bell bell = Bell::kWaits) const;
  void Sleep(uint32_t ticket, int timeout_ms, Bell bell = Bell::kWaits) const;
  void CancelSleep(Bell bell = Bell::kWaits) const;

  // Takes a join ticket. Returns the number of tickets at which all ranks have one for this round.
  // The group records which rank took the last ticket of a round.
  uint64_t TakeJoinTicket(int job_rank) const;
  uint64_t JoinTickets() const;
  // Whether local rank r is waiting in join().
  bool HasJoined(int r) const;
  // The round of joins that is under way, or comes next, from 1. It ends when all ranks have
  // joined.
  uint32_t JoinRound() const;
  // The rank that took the last ticket; *micros is the wall-clock time of that, in microseconds.
  int LastJoined(uint64_t* micros) const;
  // Between nodes, one rank learns on behalf of its node that all ranks have joined: EndJoin
  // releases the ranks that wait with this many tickets, and gives them the job's last rank.
  void EndJoin(uint64_t tickets, int last) const;
  bool JoinEnded(uint64_t tickets, int* last) const;

  // Shares the first failure that breaks the communicator with all ranks of the node. Returns false
  // if another failure was posted before.
  bool PostFailure(int code, const std::string& text) const;
  // The code of the posted failure; 0 if none.
  int Failure(std::string* text) const;
  // Whether the lower ranks have died or left, so that it is for this one to tell other nodes.
  bool IsFirstAlive() const;
  // All ranks of this node know then that the other nodes were told.
  void NoteNodesTold() const;
  bool NodesTold() const;

 private:
  struct GroupHeader;

  void Ring(int r, Bell bell) const;
  Doorbell& Own(Bell bell) const { return cells_[rank_].doorbells[static_cast<int>(bell)]; }

  char* memory_;
  int rank_, size_;
  size_t chunk_bytes_, slot_bytes_;
  GroupHeader* header_;
  RankCell* cells_;
  char* reports_;
  char* slots_;
};

}  // namespace smddp
