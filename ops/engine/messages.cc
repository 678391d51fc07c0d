#include "engine/messages.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>  // for move

#include "core/deadline.h"
#include "core/guarded.h"
#include "core/log.h"

namespace smddp {
namespace {

// Most messages are waited for at once. So the listener looks that often for others, instead of
// being woken for each, until there have been none for a while.
constexpr auto kNap = std::chrono::milliseconds(1);
constexpr double kActiveSeconds = 0.1;
constexpr int kSleepMs = 100;  // bounds the cost of a lost wake-up
// Of one rank to another at once. A receiver takes messages of one name in order, so it need not
// see more, and those of other names find a slot.
constexpr int kOffersOfOneName = 4;

}  // namespace

Message::Message(bool sends, int peer, void* data, size_t bytes, std::string name, double timeout)
    : sends(sends), peer(peer), bytes(bytes), wanted(1) {
  wanted[0].out = data;
  Request& request = operation.request;
  request.kind = sends ? Kind::kSend : Kind::kReceive;
  request.dtype = DType::kUint8;
  request.name = std::move(name);
  request.timeout_seconds = timeout;
  request.tensors = {{data, data, {static_cast<int64_t>(bytes)}}};
  operation.any_will_do = peer == kAnyRank;
}

Messages::Messages(int process_set, const Topology* topology, const ShmGroup* shm, bool reads_peers,
                   std::function<void(const Status&)> broken)
    : process_set_(process_set),
      topology_(topology),
      shm_(shm),
      possible_(reads_peers && topology->num_nodes == 1),
      broken_(std::move(broken)) {}

void Messages::Start(const std::shared_ptr<Message>& message) {
  {
    std::lock_guard<std::mutex> lock(listening_mutex_);
    if (!listener_.joinable() && !stopping_) {
      listener_ = std::thread([this] { Guarded([this] { Listen(); }, broken_); });
    }
  }
  message->operation.request.process_set = process_set_;
  message->operation.ready = NowSeconds();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.ok()) {
      message->serial = ++serial_;
      (message->sends ? sends_ : receives_).push_back(message);
      Tidy();
    } else {
      End(message.get(), failure_);
    }
  }
  WakeListener();
  Advance();
}

bool Messages::Advance() {
  std::unique_lock<std::mutex> lock(mutex_);
  bool moved = AdvanceSends();
  Match match;
  while (std::shared_ptr<Message> message = ClaimNext(&match)) {
    moved = true;
    Status read;
    if (message->wanted[0].bytes > 0) {
      lock.unlock();
      read = ReadPeer(match.slot->pid, message->wanted);
      lock.lock();
    }
    EndReading(message.get(), match, read);
    shm_->RingForMessage(match.peer);
  }
  if (moved) Tidy();
  lock.unlock();
  if (moved) shm_->RingSelf();
  return moved;
}

// ---- the sender ---------------------------------------------------------------------------------

MessageSlot& Messages::OwnSlot(const Message& message) const {
  return shm_->cell(shm_->rank()).messages[message.slot];
}

bool Messages::Change(MessageSlot* slot, uint64_t serial, Offer from, Offer to) {
  uint64_t before = MessageState(serial, from);
  return slot->state.compare_exchange_strong(before, MessageState(serial, to));
}

bool Messages::AdvanceSends() {
  bool moved = false;
  std::map<std::pair<int, uint64_t>, int> offered;  // by receiver and name
  auto count_of = [&](const Message& message) -> int& {
    return offered[{message.peer, message.operation.request.Key()}];
  };
  bool asked = false;
  for (const auto& message : sends_) {
    asked |= message->state == Message::State::kAsked;
    if (message->state == Message::State::kOffered) moved |= Answered(message.get());
  }
  for (const auto& message : sends_) {
    if (asked && message->state == Message::State::kOffered && !message->over) {
      ++count_of(*message);
    }
  }
  for (const auto& message : sends_) {
    if (!asked || message->state != Message::State::kAsked || message->over) continue;
    int& count = count_of(*message);
    if (count == kOffersOfOneName) continue;  // messages of other names may be received before it
    if (!OfferNext(message.get())) break;
    moved = true;
    ++count;
  }
  return moved;
}

bool Messages::OfferNext(Message* message) {
  RankCell& own = shm_->cell(shm_->rank());
  auto* end = own.messages + kMessageSlots;
  auto* slot = std::find_if(own.messages, end, [](const MessageSlot& one) {
    return OfferIn(one.state.load(std::memory_order_acquire)) == Offer::kNone;
  });
  if (slot == end) return false;
  message->slot = static_cast<int>(slot - own.messages);
  message->state = Message::State::kOffered;
  slot->target = message->peer;
  slot->pid = static_cast<int32_t>(::getpid());
  slot->key = message->operation.request.Key();
  slot->address = reinterpret_cast<uintptr_t>(message->wanted[0].out);
  slot->bytes = message->bytes;
  own.offers = std::max(own.offers.load(), static_cast<uint32_t>(message->slot) + 1);
  slot->state.store(MessageState(message->serial, Offer::kOpen));
  shm_->RingForMessage(message->peer);
  return true;
}

// Whether the receiver has answered; then the message is over.
bool Messages::Answered(Message* message) {
  if (message->over) return false;
  MessageSlot& slot = OwnSlot(*message);
  Offer offer = OfferIn(slot.state.load(std::memory_order_acquire));
  if (offer == Offer::kTaken) {
    End(message, {});
  } else if (offer == Offer::kTooLong) {
    End(message, TooLong(*message, shm_->rank(), message->peer, slot.bytes, slot.room));
  } else if (offer == Offer::kUnreadable) {
    End(message, {Code::kSystem, message->operation.request.Title() + ": rank " +
                                     std::to_string(topology_->JobRank(message->peer)) +
                                     " cannot read the memory of rank " +
                                     std::to_string(topology_->JobRank(shm_->rank()))});
  } else {
    return false;
  }
  slot.state.store(MessageState(message->serial, Offer::kNone), std::memory_order_release);
  // Receivers look at no more slots than are in use.
  RankCell& own = shm_->cell(shm_->rank());
  uint32_t used = own.offers;
  while (used > 0 && OfferIn(own.messages[used - 1].state) == Offer::kNone) --used;
  own.offers = used;
  return true;
}

// ---- the receiver -------------------------------------------------------------------------------

// The next receive whose message is there, which this rank's other threads then leave alone.
std::shared_ptr<Message> Messages::ClaimNext(Match* match) {
  for (const auto& candidate : receives_) {
    if (candidate->over || candidate->state != Message::State::kAsked) continue;
    *match = Find(*candidate);
    if (match->slot == nullptr) continue;
    const auto& message = FirstFor(*match, candidate->operation.request.Key());
    MessageSlot& slot = *match->slot;
    if (!Change(&slot, match->serial, Offer::kOpen, Offer::kClaimed)) continue;  // withdrawn
    const bool fits = slot.bytes <= message->bytes;
    message->wanted[0].address = slot.address;
    message->wanted[0].bytes = fits ? slot.bytes : 0;
    message->state = Message::State::kReading;
    return message;
  }
  return nullptr;
}

// The receive that was asked for first: when it was looked at, the message was not there yet.
const std::shared_ptr<Message>& Messages::FirstFor(const Match& match, uint64_t key) const {
  return *std::find_if(receives_.begin(), receives_.end(), [&](const auto& one) {
    return !one->over && one->state == Message::State::kAsked &&
           (one->peer == match.peer || one->peer == Message::kAnyRank) &&
           one->operation.request.Key() == key;
  });
}

Messages::Match Messages::Find(const Message& message) const {
  // A message that was offered before the one that is found may have been passed over, in a slot
  // that was still free then. It is seen now.
  Match found = FindOnce(message);
  return found.slot == nullptr ? found : FindOnce(message);
}

Messages::Match Messages::FindOnce(const Message& message) const {
  const uint64_t key = message.operation.request.Key();
  const bool any = message.peer == Message::kAnyRank;
  Match first;
  for (int p = any ? 0 : message.peer; p < (any ? shm_->size() : message.peer + 1); ++p) {
    RankCell& cell = shm_->cell(p);
    uint32_t used = cell.offers.load(std::memory_order_acquire);
    for (uint32_t i = 0; i < used; ++i) {
      MessageSlot& slot = cell.messages[i];
      const uint64_t state = slot.state.load(), serial = state >> 8;
      if (OfferIn(state) != Offer::kOpen || slot.target != shm_->rank() || slot.key != key ||
          slot.state.load() != state) {
        continue;
      }
      if (first.slot == nullptr || serial < first.serial) first = {p, &slot, serial};
    }
    if (first.slot != nullptr) return first;
  }
  return first;
}

void Messages::EndReading(Message* message, const Match& match, const Status& read) {
  MessageSlot& slot = *match.slot;
  const uint64_t bytes = slot.bytes;
  const bool fits = bytes <= message->bytes;
  slot.room = message->bytes;
  Offer outcome = !fits ? Offer::kTooLong : read.ok() ? Offer::kTaken : Offer::kUnreadable;
  const bool gone = read.code() == Code::kRemote;
  message->source = match.peer;
  const bool answered = !gone && Change(&slot, match.serial, Offer::kClaimed, outcome);
  if (!failure_.ok()) {
    End(message, failure_);  // which Fail() has left to this thread
  } else if (!answered) {
    message->state = Message::State::kLost;  // the monitor sees why
  } else if (!fits) {
    End(message, TooLong(*message, match.peer, shm_->rank(), bytes, message->bytes));
  } else {
    End(message, read.Within(message->operation.request.Title()));
  }
}

Status Messages::TooLong(const Message& message, int sender, int receiver, uint64_t sent,
                         uint64_t room) const {
  auto rank = [this](int r) { return "rank " + std::to_string(topology_->JobRank(r)); };
  return {Code::kMismatch, rank(sender) + " sends " + std::to_string(sent) + " bytes to " +
                               rank(receiver) + ", which has room for " + std::to_string(room) +
                               ", in " + message.operation.request.Title() +
                               ". Nothing was written; the job can go on"};
}

// ---- both ---------------------------------------------------------------------------------------

void Messages::End(Message* message, const Status& outcome) {
  message->outcome = outcome;
  message->over.store(true, std::memory_order_release);
}

// Drops the messages that are over, and counts those that need the listener: a send that is offered
// needs nothing more of this rank.
void Messages::Tidy() {
  int unattended = 0;
  for (List* list : {&sends_, &receives_}) {
    list->remove_if([](const auto& message) { return message->over.load(); });
    for (const auto& message : *list) {
      unattended += message->waiters == 0 && message->state == Message::State::kAsked;
    }
  }
  unattended_ = unattended;
}

void Messages::BeginWait(Message* message) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (message->waiters++ == 0) message->operation.waited = 0;
  Tidy();
}

void Messages::EndWait(Message* message) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    --message->waiters;
    Tidy();
  }
  if (unattended_ > 0) WakeListener();  // the message goes on
}

// Whether the bytes are being read, so that a thread of this rank or of the peer will end the
// message. Otherwise nobody begins to: the slot, if it has one, is left in this state.
bool Messages::IsRead(const Message& message, Offer after) const {
  if (message.state != Message::State::kOffered) return message.state == Message::State::kReading;
  return !Change(&OwnSlot(message), message.serial, Offer::kOpen, after);
}

void Messages::Withdraw(Message* message, const Status& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (message->over || IsRead(*message, Offer::kNone)) return;
  End(message, reason);
  Tidy();
  shm_->RingSelf();
}

void Messages::Fail(const Status& failure) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.ok()) return;
  failure_ = failure;
  for (const auto& message : sends_) {
    // What a peer is reading may be changed from now on, so the peer must not take it.
    if (IsRead(*message, Offer::kWithdrawn)) {
      Change(&OwnSlot(*message), message->serial, Offer::kClaimed, Offer::kWithdrawn);
    }
    End(message.get(), failure);
  }
  for (const auto& message : receives_) {
    // The thread that reads ends it: the memory is in use until then.
    if (message->state != Message::State::kReading) End(message.get(), failure);
  }
  Tidy();
  shm_->RingSelf();
}

std::vector<int> Messages::Missing(const Message& message) const {
  if (message.peer != Message::kAnyRank) return {topology_->JobRank(message.peer)};
  if (message.source != Message::kAnyRank) return {topology_->JobRank(message.source)};
  std::vector<int> others;
  for (int p = 0; p < shm_->size(); ++p) {
    if (p != shm_->rank()) others.push_back(topology_->JobRank(p));
  }
  return others;
}

void Messages::Inspect(double seconds,
                       const std::function<void(Operation*, const std::vector<int>&)>& look) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const List* list : {&sends_, &receives_}) {
    for (const auto& message : *list) {
      if (message->over || message->waiters == 0) continue;
      message->operation.waited += seconds;
      look(&message->operation, Missing(*message));
    }
  }
}

// ---- the listener -------------------------------------------------------------------------------

void Messages::WakeListener() {
  started_ = NowSeconds();
  if (!listener_idle_) return;
  std::lock_guard<std::mutex> lock(listening_mutex_);
  listener_wanted_.notify_one();
}

void Messages::Stop() {
  {
    std::lock_guard<std::mutex> lock(listening_mutex_);
    stopping_ = true;
  }
  listener_wanted_.notify_all();
  shm_->RingForMessage(shm_->rank());
  if (listener_.joinable()) listener_.join();
}

void Messages::Listen() {
  while (!stopping_) {
    if (unattended_ > 0) {
      if (Advance()) continue;
      uint32_t ticket = shm_->PrepareSleep(Bell::kMessages);
      if (Advance() || unattended_ == 0 || stopping_) {
        shm_->CancelSleep(Bell::kMessages);
      } else {
        shm_->Sleep(ticket, kSleepMs, Bell::kMessages);
      }
      continue;
    }
    std::unique_lock<std::mutex> lock(listening_mutex_);
    if (NowSeconds() - started_ < kActiveSeconds) {
      listener_wanted_.wait_for(lock, kNap, [this] { return stopping_.load(); });
    } else {
      listener_idle_ = true;
      listener_wanted_.wait(lock, [this] {
        return stopping_ || unattended_ > 0 || NowSeconds() - started_ < kActiveSeconds;
      });
      listener_idle_ = false;
    }
  }
}

}  // namespace smddp
