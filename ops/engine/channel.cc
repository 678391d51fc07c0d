#include "engine/channel.h"

#include <algorithm>
#include <exception>
#include <utility>  // for move

#include "collective/joined.h"
#include "core/deadline.h"
#include "core/guarded.h"
#include "core/log.h"
#include "core/try_lock.h"

namespace smddp {
namespace {

// A second thread, at the same point as the one that caused a mismatch of names, arrives sooner.
constexpr double kTurnSeconds = 0.5;
// So many hide what it takes to begin one; with more, only more has to be stopped after a failure.
constexpr size_t kMostInBackground = 8;

// Which of the peers' operations belongs to which of these is not known.
Status TwoOfAName(const Request& request) {
  return {
      Code::kUsage,
      "two threads run " + request.Title() +
          " at the same time, so ranks would combine different ones: give each thread's "
          "collectives names of their own (name=), or the threads (threading.Thread(name=...)), "
          "and map a tf.data.Dataset with collectives without num_parallel_calls"};
}

}  // namespace

Channel::Channel(ChannelResources resources, const Selector* selector, FlightRecorder* recorder,
                 Timeline* timeline, int track, bool in_plan_order, Broken broken)
    : resources_(std::move(resources)),
      selector_(selector),
      recorder_(recorder),
      timeline_(timeline),
      track_(track),
      in_plan_order_(in_plan_order),
      broken_(std::move(broken)) {
  resources_.waited = in_plan_order;
}

void Channel::Enqueue(std::unique_ptr<Operation> operation) {
  operation->ready = NowSeconds();
  std::lock_guard<std::mutex> lock(inbox_mutex_);
  inbox_.push_back(std::move(operation));
  pending_.fetch_add(1, std::memory_order_release);
  // Before the caller's Pump() tries the lock: who pumps then looks again when it lets go.
  has_mail_.store(true, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Channel::TakeIn() {
  while (has_mail_.load(std::memory_order_acquire)) {
    {
      std::lock_guard<std::mutex> lock(inbox_mutex_);
      queue_.splice(queue_.end(), inbox_, inbox_.begin());
      has_mail_.store(!inbox_.empty(), std::memory_order_relaxed);
    }
    ChooseMatching(*queue_.back());
  }
}

// For an operation at the end of the queue.
void Channel::ChooseMatching(const Operation& operation) {
  Matching matching = operation.request.matching;
  const bool has_order = in_plan_order_ || matching == Matching::kSeveralInOrder;
  // With a single thread, an operation has completed before the next one is enqueued.
  if (!has_order && queue_.size() + background_.size() > 1) {
    matching = Matching::kByName;
    if (ambiguous_.ok() && HasOneLike(operation)) ambiguous_ = TwoOfAName(operation.request);
  }
  resources_.threads |= matching == Matching::kPerhaps || matching == Matching::kByName;
  follows_ |= matching == Matching::kByName;
}

void Channel::Move(Queue* queue, const Status& outcome, Finished* finished) {
  finished->emplace_back(nullptr, outcome);  // if memory runs out here, it stays in the queue
  finished->back().first = std::move(queue->front());
  RemoveFirst(queue);
}

void Channel::RemoveFirst(Queue* queue) {
  queue->pop_front();
  pending_.fetch_sub(1, std::memory_order_release);
}

bool Channel::HasOneLike(const Operation& operation) const {
  const Request& request = operation.request;
  return !request.has_joined() && std::any_of(queue_.begin(), queue_.end(), [&](const auto& other) {
    return other.get() != &operation && !other->request.has_joined() &&
           other->request.Key() == request.Key();
  });
}

bool Channel::Pump(bool* busy) {
  bool other = false;
  bool moved = PumpOnce(&other);
  if (busy != nullptr) *busy = other;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // Whose thread could not get the lock meanwhile, and may sleep by now.
  while (has_mail_.load(std::memory_order_seq_cst) && PumpOnce(&other)) moved = true;
  return moved;
}

bool Channel::PumpOnce(bool* busy) {
  Finished finished;
  bool moved = false, first = false;
  Status broken;
  {
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    *busy = !lock.owns_lock();
    if (*busy) return false;
    first = failure_.ok();
    try {
      while (failure_.ok() && (AdvanceBackground(&finished) | AdvanceFront(&finished)))
        moved = true;
    } catch (const std::exception& error) {
      SetFailure(OutOf(error));
      if (!queue_.empty()) BreakIn(*queue_.front(), &failure_);
    }
    if (!Idle() || !finished.empty()) broken = failure_;
  }
  if (!broken.ok()) {
    // Before FailPending(), which may take a while, and before Complete(), whose callbacks shall
    // find all channels broken: the thread that broke this one may not have come to the others yet.
    broken_(broken, first);
    std::lock_guard<std::mutex> lock(mutex_);
    FailPending(&finished);
  }
  Complete(&finished);
  return moved || !broken.ok();
}

bool Channel::AdvanceBackground(Finished* finished) {
  if (background_.empty()) return false;
  Operation* oldest = background_.front().get();
  Progress progress = oldest->collective->Advance();
  oldest->steps += progress == Progress::kSome;
  if (progress != Progress::kDone) return progress == Progress::kSome;
  Status status = Finish(oldest, NowSeconds());
  Move(&background_, status, finished);
  resources_.in_background = background_.size();
  return true;
}

bool Channel::AdvanceFront(Finished* finished) {
  TakeIn();
  if (queue_.empty() || !failure_.ok()) return false;
  if (!ambiguous_.ok()) {
    Status status = ambiguous_;
    BreakIn(*queue_.back(), &status);
    return true;
  }
  Status status;
  if (follows_ && queue_.front()->collective == nullptr && !FindTurn(&status) && status.ok()) {
    return false;
  }

  Operation* front = queue_.front().get();
  // Nobody to follow is the same error on all that follow; else the others wait for this operation.
  if (!status.ok() && status.code() != Code::kUsage) BreakIn(*front, &status);
  if (status.ok() && front->collective == nullptr) {
    if (front->run_outcome != nullptr) status = *front->run_outcome;
    if (status.ok()) Activate(front);
  }

  if (status.ok()) {
    Progress progress = front->collective->Advance();
    front->steps += progress == Progress::kSome;
    if (progress != Progress::kDone) return MoveToBackground() || progress == Progress::kSome;
    bool fails = !front->collective->status().ok();  // as those before it may have, all at once
    while (fails && failure_.ok() && AdvanceBackground(finished)) continue;
    if (!failure_.ok()) return true;
    double now = NowSeconds();
    status = Finish(front, now);
    if (status.code() == Code::kOutOfTurn) {
      // A joined rank had only copied what some rank had begun; it looks again.
      if (front->request.has_joined() && resources_.threads) RemoveFirst(&queue_);
      return true;
    }
    EndTurn(now);
  }
  Move(&queue_, status, finished);
  return true;
}

bool Channel::MoveToBackground() {
  bool moves = queue_.front()->collective->InBackground() && background_.size() < kMostInBackground;
  if (!moves) return false;
  EndTurn(NowSeconds());
  background_.splice(background_.end(), queue_, queue_.begin());
  resources_.in_background = background_.size();
  return true;
}

void Channel::FailPending(Finished* finished) {
  resources_.shm->channel_cell(resources_.shm->rank(), resources_.index)
      .given_up.store(1, std::memory_order_release);
  // Peers see it before anything that is written to the tensors once they are handed back.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  {
    std::lock_guard<std::mutex> lock(inbox_mutex_);
    queue_.splice(queue_.end(), inbox_);
    has_mail_.store(false, std::memory_order_relaxed);
  }
  for (Queue* pending : {&background_, &queue_}) {
    while (!pending->empty()) {
      Operation* operation = pending->front().get();
      if (operation->collective != nullptr) {
        operation->collective->Abort();
        recorder_->Finish(operation->record, "failed", NowSeconds());
      }
      Move(pending, failure_, finished);
    }
  }
  resources_.in_background = 0;
}

bool Channel::FindTurn(Status* failure) {
  absent_key_.store(0, std::memory_order_relaxed);
  if (Leads()) return true;
  // The first rank of a node, if it has joined, has copied what it had from who leads.
  bool copied = resources_.threads && queue_.front()->request.has_joined();
  if (copied && resources_.shm->rank() == 0) return true;
  uint64_t key = 0;
  if (!NextKey(&key, failure)) return WaitedForTurn();
  auto next = std::find_if(queue_.begin(), queue_.end(),
                           [&](const auto& operation) { return operation->request.Key() == key; });
  if (next == queue_.end()) absent_key_.store(key, std::memory_order_relaxed);
  if (next == queue_.end() && resources_.shm->rank() != 0 && queue_.front()->request.has_joined()) {
    // This joined rank enqueued its part in another rank's operation; drop it and serve the first
    // rank's instead.
    RemoveFirst(&queue_);
    return false;
  }
  if (next == queue_.end()) return WaitedForTurn();
  queue_.splice(queue_.begin(), queue_, next);
  key_known_ = false;
  return true;
}

// Whether this rank says what comes next: the first one does or, once it has joined, the next one
// that has not.
bool Channel::Leads() const {
  const ShmGroup& shm = *resources_.shm;
  if (!NodeLeads()) return false;
  if (shm.rank() == 0) return true;
  if (!resources_.threads) return false;
  for (int p = 0; p < shm.rank(); ++p) {
    if (!shm.HasJoined(p)) return false;
  }
  // One that has joined since may have begun what it could end alone, as a broadcast. The first
  // rank copies that, and this one follows it.
  for (int p = 0; p < shm.size(); ++p) {
    if (HasBegun(p)) return false;
  }
  return true;
}

bool Channel::NodeLeads() const {
  const ShmGroup& shm = *resources_.shm;
  return resources_.topology->node == 0 ||
         shm.channel_cell(0, resources_.index).leads_round.load(std::memory_order_acquire) ==
             shm.JoinRound();
}

// On the first rank, whether another one waits to hear from the other nodes what comes next.
bool Channel::IsAsked() const {
  const ShmGroup& shm = *resources_.shm;
  for (int p = 1; p < shm.size(); ++p) {
    uint64_t asks = shm.channel_cell(p, resources_.index).asks_for.load(std::memory_order_acquire);
    if (asks == resources_.next_chunk + 1) return true;
  }
  return false;
}

// Whether a rank of the node has begun the next operation.
bool Channel::HasBegun(int p) const {
  return resources_.shm->channel_cell(p, resources_.index).staged.load(std::memory_order_acquire) >
         resources_.next_chunk;
}

// Whether this rank has given up waiting for its turn: the operation at the front is then a
// mismatch.
bool Channel::WaitedForTurn() {
  if (resources_.threads || NowSeconds() - turn_awaited_ < kTurnSeconds) return false;
  return resources_.waited = true;
}

// Gets the key of the operation that comes next.
bool Channel::NextKey(uint64_t* key, Status* failure) {
  const ShmGroup& shm = *resources_.shm;
  if (shm.rank() == 0) return AskLeadingNode(key, failure);
  if (!HasBegun(0)) {
    std::atomic<uint64_t>& asks = shm.channel_cell(shm.rank(), resources_.index).asks_for;
    bool asked = asks.load(std::memory_order_relaxed) == resources_.next_chunk + 1;
    if (asked || NodeLeads() || !shm.HasJoined(0)) return false;
    asks.store(resources_.next_chunk + 1, std::memory_order_release);
    shm.RingPeers();
    return false;
  }
  *key = shm.header(0, resources_.index, resources_.next_chunk).key;
  return true;
}

bool Channel::AskLeadingNode(uint64_t* key, Status* failure) {
  if (!key_known_) {
    SlotHeader own{}, leader{};
    own.presence = Presence::kFollows;
    bool held = false;
    *failure = resources_.exchange.Poll(resources_.share_peers.get(), own, &held);
    if (!held) return false;
    bool known = LeadingNode(resources_.shm->JoinRound(), &leader);
    resources_.exchange.Close();
    if (leader.presence == Presence::kGone) *failure = GoneElsewhere(leader.root, "a collective");
    if (!known) return false;
    known_key_ = leader.key;
    key_known_ = true;
  }
  *key = known_key_;
  return true;
}

// After an exchange in which this node has asked: whether the leading node has begun an operation.
// The first node leads or, once all its ranks have joined, the next one of which not all have. That
// may be this one, which then knows it, in this round of joins.
bool Channel::LeadingNode(uint32_t round, SlotHeader* leader) {
  const std::vector<SlotHeader>& nodes = resources_.exchange.headers();
  size_t n = 0;
  while (n + 1 < nodes.size() && nodes[n].presence == Presence::kJoined) ++n;
  *leader = nodes[n];
  leading_node_ = n;
  if (n == static_cast<size_t>(resources_.topology->node)) {
    const ShmGroup& shm = *resources_.shm;
    shm.channel_cell(0, resources_.index).leads_round.store(round, std::memory_order_release);
    shm.RingPeers();
  }
  return leader->presence == Presence::kHere;
}

// The operation at the front ends, or leaves the channel to the next one.
void Channel::EndTurn(double now) {
  turn_ended_ = now;
  resources_.waited = in_plan_order_;
  if (!resources_.threads) follows_ = false;
}

// Returns the operation's outcome. An operation that is out of turn stays at the front.
Status Channel::Finish(Operation* operation, double now) {
  Status status = operation->collective->status();
  if (status.code() == Code::kOutOfTurn) {
    recorder_->Finish(operation->record, "out of turn", now);
    operation->collective = nullptr;
    follows_ = true;
    turn_awaited_ = turn_ended_ = now;
    return status;
  }

  recorder_->Finish(operation->record, status.ok() ? "done" : "failed", now);
  if (resources_.timed) Trace(*operation, !status.ok(), now);
  ++stats_.operations;
  stats_.bytes += operation->request.bytes();
  if (operation->awaited) stats_.awaited_seconds += now - operation->ready;

  if (!status.ok() && status.code() != Code::kMismatch) BreakIn(*operation, &status);
  std::shared_ptr<Status>& outcome = operation->run_outcome;
  if (outcome != nullptr && outcome->ok()) *outcome = status;
  return status;
}

// The ranks are out of step now: a later operation would read this one's leftovers. The message
// names this rank because it is propagated to the others.
void Channel::BreakIn(const Operation& operation, Status* status) {
  int rank = resources_.topology->JobRank(resources_.topology->local_rank);
  *status =
      status->Within("rank " + std::to_string(rank) + " failed in " + operation.request.Title());
  SetFailure(*status);
}

void Channel::SetFailure(Status failure) {
  failure_ = std::move(failure);
  broken_now_.store(true, std::memory_order_release);
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
  // An operation's turn comes when it is enqueued or when that of the previous one ends, so there
  // is no need to read the clock.
  operation->started = std::max(operation->ready, turn_ended_);
  resources_.timed = timeline_->on();
  std::string why;
  bool debug = LogEnabled(LogLevel::kDebug);
  operation->collective = selector_->Make(&resources_, &operation->request, debug ? &why : nullptr);
  operation->record =
      recorder_->Start(operation->request.Title(), operation->request.bytes(), operation->started);
  if (debug) LogDebug(operation->request.Title() + ": " + why);
}

void Channel::Complete(Finished* finished) const {
  for (auto& [operation, status] : *finished) {
    // A callback that cannot go on must not keep the next from hearing.
    Guarded([&, &operation = operation, &status = status] { operation->done(status); },
            [](const Status& thrown) { LogError("a callback failed: " + thrown.message()); });
  }
  // Another thread of this rank may be asleep until one of these is done.
  if (!finished->empty()) resources_.shm->RingSelf();
}

Channel::Glance Channel::Look() const {
  std::unique_lock<std::mutex> lock = TryLock(mutex_);
  if (!lock.owns_lock()) return {};
  return {true, Idle(), resources_.threads};
}

Status Channel::Failure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void Channel::Fail(const Status& failure, Endings* endings) {
  auto finished = std::make_shared<Finished>();
  std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.ok()) return;
  SetFailure(failure);
  FailPending(finished.get());
  endings->emplace_back([this, finished] { Complete(finished.get()); });
}

bool Channel::AnnounceDeparture() {
  std::lock_guard<std::mutex> lock(mutex_);
  const Topology& topo = *resources_.topology;
  return resources_.share_peers == nullptr ||
         resources_.exchange.AnnounceDeparture(resources_.share_peers.get(),
                                               topo.JobRank(topo.local_rank));
}

void Channel::Disconnect() {
  std::lock_guard<std::mutex> lock(mutex_);
  resources_.share_peers.reset();
  resources_.all_ranks.reset();
}

bool Channel::Inspect(double seconds,
                      const std::function<void(Operation*, const std::vector<int>&)>& look) {
  std::unique_lock<std::mutex> lock = TryLock(mutex_);
  if (!lock.owns_lock()) return false;
  TakeIn();  // so that none is overlooked, whatever became of the thread that brought it
  // Of those in the background the others cannot end before the oldest. What the peers' counters
  // say is of those behind it.
  if (!background_.empty()) {
    CountWait(seconds, 0, background_.front().get());
    look(background_.front().get(), background_.front()->collective->Missing());
  }
  if (queue_.empty()) return true;
  Operation* front = queue_.front().get();
  bool begun = front->collective != nullptr;
  if (!begun && !follows_) return true;
  if (begun && front->collective->InBackground() && !background_.empty()) return true;
  // What a peer still does for an earlier operation counts too: it will come to this one.
  CountWait(seconds, begun ? resources_.shm->Steps(resources_.index) : 0, front);
  // An operation that waits for its turn: who leads is late, or has begun one that this rank has
  // not.
  look(front, begun ? front->collective->Missing() : std::vector<int>{Leader()});
  return true;
}

// The job rank that says what comes next, as far as this rank knows.
int Channel::Leader() const {
  const Topology& topo = *resources_.topology;
  for (int p = 0; p < resources_.shm->size() && NodeLeads(); ++p) {
    if (!resources_.shm->HasJoined(p)) return topo.JobRank(p);
  }
  return topo.job_ranks[topo.nodes[leading_node_][0]];
}

// `progress`: of the peers.
void Channel::CountWait(double seconds, uint64_t progress, Operation* operation) const {
  progress += operation->steps;
  operation->waited = progress == operation->seen ? operation->waited + seconds : 0;
  operation->seen = progress;
}

ChannelStats Channel::Stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

// ---- as a rank that has joined sees it: what its peers have begun without it
// ---------------------

// Ranks that wait for the same number of tickets join in the same round.
uint32_t Channel::JoinRound(uint64_t tickets) const {
  return static_cast<uint32_t>(tickets / static_cast<uint64_t>(resources_.shm->size()));
}

// Looks for an operation that peers have begun without this rank. Within the node, that is a chunk
// staged by a peer. After the whole node has joined, only chunks staged by joined ranks belong to
// this round: others belong to operations after the join. An owner then exchanges headers with the
// other nodes. So does the first rank of a node whose other ranks follow it.
bool Channel::FindBegun(uint64_t tickets, JoinedChannel* joined, SlotHeader* begun) {
  const ShmGroup& shm = *resources_.shm;
  for (int p = 0; p < shm.size(); ++p) {
    if (!HasBegun(p)) continue;
    *begun = shm.header(p, resources_.index, resources_.next_chunk);
    bool of_round = begun->presence == Presence::kJoined && begun->join_round == JoinRound(tickets);
    if (of_round || shm.JoinTickets() < tickets) return true;
  }
  if (resources_.share_peers == nullptr || joined->over) return false;
  const bool all_here = shm.JoinTickets() >= tickets;
  if (!all_here && (shm.rank() != 0 || NodeLeads() || !IsAsked())) return false;

  SlotHeader own{};
  own.presence = all_here ? Presence::kJoined : Presence::kFollows;
  if (all_here) own.root = shm.LastJoined(&own.count);
  bool held = false;
  joined->failure = resources_.exchange.Poll(resources_.share_peers.get(), own, &held);
  if (!held) return false;
  // This node may have asked before its last rank joined.
  size_t here = static_cast<size_t>(resources_.topology->node);
  if (resources_.exchange.headers()[here].presence == Presence::kFollows) {
    bool known = LeadingNode(JoinRound(tickets), begun);
    resources_.exchange.Close();
    if (begun->presence == Presence::kGone) joined->failure = GoneElsewhere(begun->root, "join()");
    return known;
  }

  uint64_t latest = 0;
  bool everybody = true;  // every node has joined
  for (const SlotHeader& node : resources_.exchange.headers()) {
    if (node.presence == Presence::kGone) joined->failure = GoneElsewhere(node.root, "join()");
    if (node.presence == Presence::kGone) return false;
    everybody = everybody && node.presence == Presence::kJoined;
    if (node.presence == Presence::kHere) {
      *begun = node;
      return true;
    }
    if (node.count >= latest) joined->last = node.root;
    latest = std::max(latest, node.count);
  }

  joined->over = everybody;
  resources_.exchange.Close();
  return false;
}

bool Channel::EnqueueJoined(uint64_t tickets, JoinedChannel* joined) {
  std::lock_guard<std::mutex> lock(mutex_);
  joined->run = 0;
  SlotHeader begun;
  TakeIn();
  if (!queue_.empty() || !failure_.ok() || !FindBegun(tickets, joined, &begun)) return false;
  auto operation = std::make_unique<Operation>();
  operation->request = JoinedRequest(begun, *resources_.topology, &operation->memory);
  operation->request.joined.round = JoinRound(tickets);
  operation->ready = NowSeconds();
  operation->awaited = false;
  operation->done = [](const Status&) {};  // the rank that began it gets the error
  joined->run = begun.run;
  queue_.push_back(std::move(operation));
  pending_.fetch_add(1, std::memory_order_release);
  return true;
}

}  // namespace smddp
