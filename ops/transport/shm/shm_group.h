// ShmGroup: the ranks of one node, meeting in one shared-memory segment.
//
// The segment holds, for each rank, a cell (liveness, doorbell, progress counters) and, for each
// channel, kSlots staging slots of chunk_bytes. A channel is an ordered stream of chunks, numbered
// from 0 and never reused; chunk k uses slot k % kSlots. Counters say how many chunks a rank has
// finished in each phase, so they only grow, each is written by one rank alone, and a wait is
// "peer's counter > k". The cells are plain memory: threads of one process can share them as well,
// which is how the contract tests run.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace smddp {

constexpr int kChannels = 2;
constexpr int kSlots = 4;
constexpr size_t kDetailBytes = 64 << 10;
constexpr size_t kFailureBytes = 4096;
constexpr size_t kTitleBytes = 248;

// Progress of one rank on one channel; see collective/pipeline.h for the phases.
struct alignas(64) ChannelCell {
  std::atomic<uint64_t> staged;
  std::atomic<uint64_t> combined;
  std::atomic<uint64_t> unpacked;
  // Mismatch reports, counted: the text in RankCell::detail has been posted, and been read.
  std::atomic<uint64_t> detail_posted;
  std::atomic<uint64_t> detail_read;
  // Set when operations end early: their tensors are no longer lent to peers.
  std::atomic<uint64_t> given_up;
};

enum class PeerState : int { kJoining = 0, kAlive = 1, kLeft = 2, kDead = 3 };

// What a rank tells its node of its operation in a mismatch, beside the text in RankCell::detail.
struct MismatchReport {
  uint64_t key;  // Request::Key()
  bool threads;  // several threads of this rank, or a TF1 session, may run collectives at once
  bool waited;   // for the operation that the first rank has begun, and it did not come
};

// Where a rank stands in a channel; see engine/cycle.h.
enum class ChannelState : int { kIdle = 0, kBusy = 1, kStuck = 2 };
struct alignas(64) ChannelReport {
  std::atomic<ChannelState> state;
  char title[kTitleBytes];  // while kStuck: of the operation
};

struct RankCell {
  alignas(64) pthread_mutex_t alive;  // robust: the kernel tells when its owner dies
  std::atomic<int> state;             // PeerState
  int pid;
  int job_rank;
  alignas(64) std::atomic<uint32_t> doorbell;  // futex word
  std::atomic<uint32_t> sleepers;
  ChannelCell channels[kChannels];
  std::atomic<uint64_t> joins;  // how often this rank took a join ticket
  MismatchReport mismatches[kChannels];
  ChannelReport reports[kChannels];
  char detail[kChannels][kDetailBytes];
};

// Of who writes a header.
enum class Presence : int32_t {
  kHere = 0,
  kJoined = 1,   // in a slot: for others' operation; between nodes: all ranks of the node
  kGone = 2,     // between nodes: the rank ended or failed
  kFollows = 3,  // between nodes: the node asks which operation the first node has begun
};

struct alignas(64) SlotHeader {
  uint64_t signature;  // of the operation that starts with this chunk
  uint64_t key;        // of the operation's name; see Request::Key()
  // 1: the ranks of another node disagree; 2: this rank could not read a peer (single_copy.cc)
  uint8_t verdict;
  // What a rank that has joined needs to take part: collective/joined.h.
  uint8_t kind, dtype, op;
  int32_t root;
  Presence presence;
  uint32_t join_round;  // of a rank that has joined, which serves others of its own round only
  uint64_t count, num_chunks, run;
  double scale;  // of the result
};
static_assert(sizeof(SlotHeader) == 64, "a line of the cache");

class ShmGroup {
 public:
  static size_t BytesNeeded(int local_size, size_t chunk_bytes);
  // Sizes of all that lies in the memory: ranks whose libraries differ here cannot share it.
  static std::string Layout();

  // `memory` is zeroed and at least BytesNeeded() long; it outlives the group.
  ShmGroup(void* memory, int local_rank, int local_size, size_t chunk_bytes);

  int rank() const { return rank_; }
  int size() const { return size_; }
  size_t chunk_bytes() const { return chunk_bytes_; }

  RankCell& cell(int r) const { return cells_[r]; }
  ChannelCell& channel_cell(int r, int channel) const { return cells_[r].channels[channel]; }
  SlotHeader& header(int r, int channel, uint64_t chunk) const;
  char* slot(int r, int channel, uint64_t chunk) const;

  // Liveness. MarkAlive is called on a thread that lives as long as the group is used, because the
  // kernel ties the robust mutex to that thread.
  void MarkAlive(int job_rank);
  void Leave();
  PeerState Peer(int r) const;

  // Wakes the peers that sleep; called after a counter was published.
  void RingPeers() const;
  // Wakes threads of this rank, when one thread finished what another waits for.
  void RingSelf() const;
  // To sleep: Prepare, look once more whether there is something to do, then Sleep or Cancel.
  uint32_t PrepareSleep() const;
  void Sleep(uint32_t ticket, int timeout_ms) const;
  void CancelSleep() const;

  // Joining, counted: takes a ticket and returns the number of tickets at which all ranks have one
  // for this round. The rank that took the last one of a round is remembered.
  uint64_t TakeJoinTicket(int job_rank) const;
  uint64_t JoinTickets() const;
  // Whether local rank r waits in join() for the others.
  bool HasJoined(int r) const;
  // The rank, and when, in microseconds of the wall clock.
  int LastJoined(uint64_t* micros) const;
  // Between nodes one rank finds out for its node that all have joined: those who wait with this
  // many tickets go on, and are told the job's last rank.
  void EndJoin(uint64_t tickets, int last) const;
  bool JoinEnded(uint64_t tickets, int* last) const;

  // The first failure that breaks the communicator, shared with all ranks of the node. Returns
  // false when somebody else's failure came first.
  bool PostFailure(int code, const std::string& text) const;
  // 0 while there is none.
  int Failure(std::string* text) const;

 private:
  struct GroupHeader;

  void Ring(int r) const;

  char* memory_;
  int rank_, size_;
  size_t chunk_bytes_, slot_bytes_;
  GroupHeader* header_;
  RankCell* cells_;
  char* slots_;
};

}  // namespace smddp
