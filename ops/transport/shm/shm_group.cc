#include "transport/shm/shm_group.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

namespace smddp {

struct alignas(64) ShmGroup::GroupHeader {
  std::atomic<int> failure_claimed;
  std::atomic<int> failure_code;  // stored after the text
  std::atomic<bool> nodes_told;
  char failure_text[kFailureBytes];
  std::atomic<uint64_t> join_tickets;
  // Stored before the ticket that completes a round is counted.
  std::atomic<int> last_joined;
  std::atomic<uint64_t> last_joined_micros;
  std::atomic<int> join_last;  // stored before join_ended
  std::atomic<uint64_t> join_ended;
  std::atomic<int> join_lock;
};

namespace {

constexpr size_t kPage = 4096;

size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

size_t CellsOffset() { return 2 * kPage; }  // the group header comes first

size_t ReportsOffset(int local_size) {
  return CellsOffset() + RoundUp(sizeof(RankCell) * local_size, kPage);
}

// The reports of one rank on one channel, on lines of their own.
size_t ReportsBytes(int local_size) { return RoundUp(sizeof(PullReport) * local_size, 64); }

size_t SlotsOffset(int local_size) {
  return ReportsOffset(local_size) +
         RoundUp(ReportsBytes(local_size) * kChannels * local_size, kPage);
}

size_t SlotBytes(size_t chunk_bytes) { return RoundUp(chunk_bytes + sizeof(SlotHeader), kPage); }

long Futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, timeout, nullptr,
                   0);
}

}  // namespace

size_t ShmGroup::BytesNeeded(int local_size, size_t chunk_bytes) {
  return SlotsOffset(local_size) + SlotBytes(chunk_bytes) * kSlots * kChannels * local_size;
}

Range ShmGroup::PartOf(int local_rank, int local_size, size_t chunk_bytes) {
  size_t each = SlotBytes(chunk_bytes) * kSlots * kChannels;
  size_t begin = SlotsOffset(local_size) + each * static_cast<size_t>(local_rank);
  return {local_rank == 0 ? 0 : begin, begin + each};
}

std::string ShmGroup::Layout() {
  std::string text;
  for (size_t size : {sizeof(GroupHeader), sizeof(RankCell), sizeof(ChannelCell),
                      sizeof(SlotHeader), sizeof(PullReport), sizeof(pthread_mutex_t),
                      size_t{kChannels}, size_t{kSlots}, size_t{kMessageSlots}}) {
    text += (text.empty() ? "" : " ") + std::to_string(size);
  }
  return text;
}

ShmGroup::ShmGroup(void* memory, int local_rank, int local_size, size_t chunk_bytes)
    : memory_(static_cast<char*>(memory)),
      rank_(local_rank),
      size_(local_size),
      chunk_bytes_(chunk_bytes),
      slot_bytes_(SlotBytes(chunk_bytes)),
      header_(reinterpret_cast<GroupHeader*>(memory_)),
      cells_(reinterpret_cast<RankCell*>(memory_ + CellsOffset())),
      reports_(memory_ + ReportsOffset(local_size)),
      slots_(memory_ + SlotsOffset(local_size)) {
  static_assert(sizeof(GroupHeader) <= kPage * 2, "the header has its pages");
}

SlotHeader& ShmGroup::header(int r, int channel, uint64_t chunk) const {
  size_t index = (static_cast<size_t>(r) * kChannels + channel) * kSlots + chunk % kSlots;
  return *reinterpret_cast<SlotHeader*>(slots_ + index * slot_bytes_);
}

char* ShmGroup::slot(int r, int channel, uint64_t chunk) const {
  return reinterpret_cast<char*>(&header(r, channel, chunk)) + sizeof(SlotHeader);
}

uint64_t ShmGroup::Steps(int channel) const {
  uint64_t steps = 0;
  for (int r = 0; r < size_; ++r) {
    const ChannelCell& cell = channel_cell(r, channel);
    for (const auto* counter :
         {&cell.staged, &cell.combined, &cell.unpacked, &cell.detail_posted, &cell.detail_read}) {
      steps += counter->load(std::memory_order_relaxed);
    }
  }
  return steps;
}

PullReport& ShmGroup::pull_report(int reader, int channel, int writer) const {
  size_t row = static_cast<size_t>(reader) * kChannels + channel;
  return reinterpret_cast<PullReport*>(reports_ + row * ReportsBytes(size_))[writer];
}

void ShmGroup::MarkAlive(int job_rank) {
  RankCell& self = cells_[rank_];
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&self.alive, &attributes);
  pthread_mutexattr_destroy(&attributes);
  pthread_mutex_lock(&self.alive);
  self.pid = static_cast<int>(::getpid());
  self.job_rank = job_rank;
  self.state.store(static_cast<int>(PeerState::kAlive), std::memory_order_release);
}

void ShmGroup::Leave() {
  RankCell& self = cells_[rank_];
  self.state.store(static_cast<int>(PeerState::kLeft), std::memory_order_release);
  pthread_mutex_unlock(&self.alive);
  RingPeers();
}

void ShmGroup::NoteException(const std::string& text) const {
  char* own = cells_[rank_].exception;
  const size_t bytes = std::min(text.size(), kExceptionBytes);
  std::memcpy(own, text.data(), bytes);
  if (bytes < kExceptionBytes) own[bytes] = '\0';
}

std::string ShmGroup::Exception(int r) const {
  if (Peer(r) != PeerState::kLeft) return "";
  const char* text = cells_[r].exception;
  size_t bytes = ::strnlen(text, kExceptionBytes);
  if (bytes < kExceptionBytes) return {text, bytes};
  // The last character may have been cut.
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes - 1]) & 0xC0) == 0x80) --bytes;
  if (bytes > 0) --bytes;
  return std::string(text, bytes) + "...";
}

PeerState ShmGroup::Peer(int r) const {
  RankCell& peer = cells_[r];
  auto state = static_cast<PeerState>(peer.state.load(std::memory_order_acquire));
  if (state != PeerState::kAlive) return state;
  int error = pthread_mutex_trylock(&peer.alive);
  if (error == EBUSY) return PeerState::kAlive;
  if (error == EOWNERDEAD) {
    // We own the mutex now and keep it locked; other ranks learn of the death from the state.
    peer.state.store(static_cast<int>(PeerState::kDead), std::memory_order_release);
    return PeerState::kDead;
  }
  if (error == 0) pthread_mutex_unlock(&peer.alive);
  return static_cast<PeerState>(peer.state.load(std::memory_order_acquire));
}

void ShmGroup::Ring(int r, Bell bell) const {
  Doorbell& door = cells_[r].doorbells[static_cast<int>(bell)];
  if (door.sleepers.load(std::memory_order_relaxed) == 0) return;
  door.word.fetch_add(1, std::memory_order_release);
  Futex(&door.word, FUTEX_WAKE, INT_MAX, nullptr);
}

void ShmGroup::RingPeers() const {
  // Pairs with the increment in PrepareSleep: either we see the sleeper or it sees our counter.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) Ring(r, Bell::kWaits);
  }
}

void ShmGroup::RingSelf() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // as in RingPeers
  Ring(rank_, Bell::kWaits);
}

void ShmGroup::RingForMessage(int r) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // as in RingPeers
  Ring(r, Bell::kWaits);
  Ring(r, Bell::kMessages);
}

uint32_t ShmGroup::PrepareSleep(Bell bell) const {
  Doorbell& own = Own(bell);
  uint32_t ticket = own.word.load(std::memory_order_acquire);
  own.sleepers.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return ticket;
}

void ShmGroup::Sleep(uint32_t ticket, int timeout_ms, Bell bell) const {
  timespec timeout{timeout_ms / 1000, (timeout_ms % 1000) * 1000000L};
  // Woken, interrupted, rung before we slept, or timed out: the caller checks again in every case.
  Futex(&Own(bell).word, FUTEX_WAIT, ticket, &timeout);
  CancelSleep(bell);
}

void ShmGroup::CancelSleep(Bell bell) const {
  Own(bell).sleepers.fetch_sub(1, std::memory_order_relaxed);
}

uint64_t ShmGroup::TakeJoinTicket(int job_rank) const {
  // The lock makes the ticket and the last rank one update. Its holder may die, in which case the
  // job fails anyway, so waiting for the lock is bounded.
  for (int tries = 0; header_->join_lock.exchange(1) != 0 && tries < 1000; ++tries) ::usleep(1000);
  uint64_t ticket = header_->join_tickets.load(), size = static_cast<uint64_t>(size_);
  if ((ticket + 1) % size == 0) {
    timespec now;
    ::clock_gettime(CLOCK_REALTIME, &now);
    header_->last_joined_micros = static_cast<uint64_t>(now.tv_sec) * 1000000 + now.tv_nsec / 1000;
    header_->last_joined.store(job_rank);
  }
  cells_[rank_].joins.fetch_add(1);
  header_->join_tickets.store(ticket + 1, std::memory_order_release);
  header_->join_lock.store(0);
  RingPeers();
  return (ticket / size + 1) * size;
}

bool ShmGroup::HasJoined(int r) const {
  return cells_[r].joins.load(std::memory_order_acquire) >= JoinRound();
}

uint32_t ShmGroup::JoinRound() const {
  return static_cast<uint32_t>(JoinTickets() / static_cast<uint64_t>(size_)) + 1;
}

bool ShmGroup::IsFirstAlive() const {
  for (int r = 0; r < rank_; ++r) {
    const PeerState state = Peer(r);
    if (state != PeerState::kDead && state != PeerState::kLeft) return false;
  }
  return true;
}

void ShmGroup::NoteNodesTold() const { header_->nodes_told.store(true); }

bool ShmGroup::NodesTold() const { return header_->nodes_told.load(); }

uint64_t ShmGroup::JoinTickets() const {
  return header_->join_tickets.load(std::memory_order_acquire);
}

int ShmGroup::LastJoined(uint64_t* micros) const {
  *micros = header_->last_joined_micros.load();
  return header_->last_joined.load();
}

void ShmGroup::EndJoin(uint64_t tickets, int last) const {
  header_->join_last.store(last);
  header_->join_ended.store(tickets, std::memory_order_release);
  RingPeers();
}

bool ShmGroup::JoinEnded(uint64_t tickets, int* last) const {
  if (header_->join_ended.load(std::memory_order_acquire) < tickets) return false;
  *last = header_->join_last.load();
  return true;
}

bool ShmGroup::PostFailure(int code, const std::string& text) const {
  if (header_->failure_claimed.exchange(1) != 0) {
    // The peer that was first may still be writing its text, which the caller wants to read next.
    // It may also have died there, so this ends.
    for (int i = 0; i < 1000 && header_->failure_code.load(std::memory_order_acquire) == 0; ++i) {
      ::sched_yield();
    }
    return false;
  }
  std::strncpy(header_->failure_text, text.c_str(), kFailureBytes - 1);
  header_->failure_code.store(code, std::memory_order_release);
  RingPeers();
  return true;
}

int ShmGroup::Failure(std::string* text) const {
  int code = header_->failure_code.load(std::memory_order_acquire);
  if (code != 0 && text != nullptr) *text = header_->failure_text;
  return code;
}

}  // namespace smddp
