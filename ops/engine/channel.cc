#include "engine/channel.h"

#include <algorithm>
#include <utility>  // for move

#include "collective/joined.h"
#include "core/deadline.h"
#include "core/log.h"

namespace smddp {

Channel::Channel(Lane lane, const Selector* selector, FlightRecorder* recorder, Timeline* timeline,
                 int track)
    : lane_(std::move(lane)),
      selector_(selector),
      recorder_(recorder),
      timeline_(timeline),
      track_(track) {}

void Channel::Enqueue(std::unique_ptr<Operation> operation) {
  operation->ready = NowSeconds();
  std::lock_guard<std::mutex> lock(mutex_);
  queue_.push_back(std::move(operation));
}

bool Channel::Pump() {
  Finished finished;
  bool moved = false;
  {
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    while (!queue_.empty() && AdvanceFront(&finished)) moved = true;
  }
  Complete(&finished);
  return moved;
}

// True if anything moved.
bool Channel::AdvanceFront(Finished* finished) {
  Operation* front = queue_.front().get();
  Status status = failure_;
  if (front->collective == nullptr) {
    if (status.ok() && front->fate != nullptr) status = *front->fate;
    if (status.ok()) Activate(front);
  }
  if (status.ok()) {
    Progress progress = front->collective->Advance();
    if (progress != Progress::kDone) return progress == Progress::kSome;
    status = front->collective->status();
    last_done_ = NowSeconds();
    recorder_->Finish(front->record, status.ok() ? "done" : "failed", last_done_);
    if (lane_.timed) Trace(*front, !status.ok(), last_done_);
    ++stats_.operations;
    stats_.bytes += front->request.bytes();
    if (front->awaited) stats_.awaited_seconds += last_done_ - front->ready;
    if (front->fate != nullptr && front->fate->ok()) *front->fate = status;
    // The streams of the ranks are out of step now; the monitors of this node break it everywhere.
    if (!status.ok() && status.code() != Code::kMismatch) {
      failure_ = status;
      lane_.shm->PostFailure(static_cast<int>(status.code()), status.message());
    }
  }
  finished->emplace_back(std::move(queue_.front()), status);
  queue_.pop_front();
  return true;
}

void Channel::Trace(const Operation& operation, bool failed, double now) const {
  TimelineEvent event;
  event.title = operation.request.Title();
  event.ready = operation.ready;
  event.started = operation.started;
  event.met = operation.collective->met_at();
  event.done = now;
  event.bytes = operation.request.bytes();
  event.sequence = operation.sequence;
  event.track = track_;
  event.failed = failed;
  timeline_->Add(event);
}

void Channel::Activate(Operation* operation) {
  operation->sequence = sequence_++;
  // An operation's turn comes when it is enqueued or when the last one ends: no need for the clock.
  operation->started = std::max(operation->ready, last_done_);
  lane_.timed = timeline_->on();
  std::string why;
  bool debug = LogEnabled(LogLevel::kDebug);
  operation->collective = selector_->Make(&lane_, &operation->request, debug ? &why : nullptr);
  operation->record =
      recorder_->Start(operation->request.Title(), operation->request.bytes(), operation->started);
  if (debug) LogDebug(operation->request.Title() + ": " + why);
}

void Channel::Complete(Finished* finished) const {
  for (auto& [operation, status] : *finished) operation->done(status);
  // Another thread of this rank may sleep until one of these is done.
  if (!finished->empty()) lane_.shm->RingSelf();
}

// Whoever waits for the same number of tickets joins in the same round.
uint32_t Channel::JoinRound(uint64_t tickets) const {
  return static_cast<uint32_t>(tickets / static_cast<uint64_t>(lane_.shm->size()));
}

// What the others have begun and we have no part in yet. On this node that is what a peer has
// staged. When the whole node has joined, only what one of its ranks staged for others in this
// round of joining is of our time: the rest comes after the join. An owner then meets those of the
// other nodes.
bool Channel::FindBegun(uint64_t tickets, JoinedLane* joined, SlotHeader* begun) {
  const ShmGroup& shm = *lane_.shm;
  for (int p = 0; p < shm.size(); ++p) {
    uint64_t staged = shm.lane(p, lane_.index).staged.load(std::memory_order_acquire);
    if (staged <= lane_.next_chunk) continue;
    *begun = shm.header(p, lane_.index, lane_.next_chunk);
    bool of_round = begun->presence == Presence::kJoined && begun->join_round == JoinRound(tickets);
    if (of_round || shm.JoinTickets() < tickets) return true;
  }
  if (lane_.cross == nullptr || joined->over || shm.JoinTickets() < tickets) return false;
  SlotHeader own{};
  own.presence = Presence::kJoined;
  own.root = shm.LastJoined(&own.count);
  bool held = false;
  joined->failure = lane_.meeting.Hold(lane_.cross.get(), own, &held);
  if (!held) return false;
  uint64_t latest = 0;
  for (const SlotHeader& node : lane_.meeting.headers()) {
    if (node.presence == Presence::kGone) joined->failure = GoneElsewhere(node.root, "join()");
    if (node.presence == Presence::kGone) return false;
    if (node.presence == Presence::kHere) {
      *begun = node;
      return true;
    }
    if (node.count >= latest) joined->last = node.root;
    latest = std::max(latest, node.count);
  }
  joined->over = true;
  lane_.meeting.Close();
  return false;
}

bool Channel::EnqueueJoined(uint64_t tickets, JoinedLane* joined) {
  std::lock_guard<std::mutex> lock(mutex_);
  joined->run = 0;
  SlotHeader begun;
  if (!queue_.empty() || !failure_.ok() || !FindBegun(tickets, joined, &begun)) return false;
  auto operation = std::make_unique<Operation>();
  operation->request = JoinedRequest(begun, *lane_.topology, &operation->memory);
  operation->request.joined.round = JoinRound(tickets);
  operation->awaited = false;
  operation->done = [](const Status&) {};  // whoever began it gets the error
  joined->run = begun.run;
  queue_.push_back(std::move(operation));
  return true;
}

bool Channel::Idle() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return queue_.empty();
}

void Channel::Fail(const Status& failure) {
  Finished finished;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = failure;
    for (auto& operation : queue_) {
      if (operation->collective != nullptr)
        recorder_->Finish(operation->record, "failed", NowSeconds());
      finished.emplace_back(std::move(operation), failure);
    }
    queue_.clear();
  }
  Complete(&finished);
}

bool Channel::SayGone() {
  std::lock_guard<std::mutex> lock(mutex_);
  const Topology& topo = *lane_.topology;
  return lane_.cross == nullptr ||
         lane_.meeting.SayGone(lane_.cross.get(), topo.WorldRank(topo.local_rank));
}

void Channel::Disconnect() {
  std::lock_guard<std::mutex> lock(mutex_);
  lane_.cross.reset();
  lane_.world.reset();
}

void Channel::Inspect(double seconds,
                      const std::function<void(Operation*, const std::vector<int>&)>& look) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (queue_.empty()) return;
  Operation* front = queue_.front().get();
  if (front->collective == nullptr) return;
  front->waited += seconds;
  look(front, front->collective->Missing());
}

ChannelStats Channel::Stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

}  // namespace smddp
