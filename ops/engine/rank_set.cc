#include "engine/rank_set.h"

#include <unistd.h>

#include <utility>  // for move

#include "core/deadline.h"
#include "core/guarded.h"
#include "core/short_slice.h"

namespace smddp {
namespace {

// Buckets up to this size are advanced on the submitting thread while the spin lasts; larger ones
// go to the progress thread at once, so that the caller can continue with the backward pass.
constexpr size_t kInlineBytes = 256 << 10;

// On a broken channel there may be no progress thread, and Pump() only completes operations. The
// thread that broke it may still hold its lock, and needs a core to let go.
void CompleteIfBroken(Channel* channel) {
  while (channel->IsBroken() && !channel->Idle()) {
    if (!channel->Pump()) ::usleep(100);
  }
}

}  // namespace

RankSet::RankSet(int number, std::unique_ptr<Connection> connection, const Selector* selector,
                 FlightRecorder* recorder, Timeline* timeline, double spin_seconds,
                 const Broken& broken)
    : number_(number),
      broken_(broken),
      connection_(std::move(connection)),
      direct_(std::move(connection_->channels[0]), selector, recorder, timeline,
              TrackOf(number, false), false, UnlessClosed(broken)),
      gradients_(std::move(connection_->channels[1]), selector, recorder, timeline,
                 TrackOf(number, true), true, UnlessClosed(broken)),
      plans_(&gradients_),
      messages_(number, &connection_->topology, connection_->shm.get(), connection_->reads_peers,
                [this](const Status& thrown) { Break(thrown); }),
      cycles_(&connection_->topology, connection_->shm.get()),
      spin_seconds_(spin_seconds) {}

RankSet::~RankSet() = default;

void RankSet::StartProgress() {
  // On a broken set nothing needs it.
  progress_ = std::thread([this] {
    Guarded([this] { ProgressLoop(); }, [this](const Status& thrown) { Break(thrown); });
  });
}

void RankSet::StopProgress() {
  {
    std::lock_guard<std::mutex> lock(progress_mutex_);
    stopping_ = true;
  }
  progress_wanted_.notify_all();
  shm()->RingSelf();
  if (progress_.joinable()) progress_.join();
  messages_.Stop();
}

void RankSet::Fail(const Status& failure, Endings* endings) {
  direct_.Fail(failure, endings);
  gradients_.Fail(failure, endings);
  plans_.Fail(failure, endings);
  messages_.Fail(failure);
}

void RankSet::CloseDevices(bool broken) {
  DeviceGroup* devices = connection_->devices.get();
  if (devices == nullptr) return;
  if (broken) return devices->Abort();
  devices->Close();
}

// What comes when the set has been closed fails by itself.
Broken RankSet::UnlessClosed(const Broken& broken) {
  return [this, broken](const Status& failure, bool first) {
    if (!closed_) broken(failure, first);
  };
}

void RankSet::Close(const Status& reason) {
  StopProgress();
  CloseDevices(false);
  closed_ = true;
  Endings endings;
  Fail(reason, &endings);
  for (const auto& end : endings) end();
  direct_.Disconnect();
  gradients_.Disconnect();
}

Waiter RankSet::MakeWaiter() {
  return Waiter(shm(), spin_seconds_, topology().num_nodes > 1, &crowded_until_);
}

Status RankSet::Run(Request request) {
  struct Result {
    std::atomic<bool> done{false};
    Status status;
  } result;
  auto operation = std::make_unique<Operation>();
  operation->request = std::move(request);
  operation->done = [&result](const Status& status) {
    Guarded([&] { result.status = status; },
            [&](const Status&) { result.status = {status.code(), "no memory is left"}; });
    result.done.store(true, std::memory_order_release);
  };
  direct_.Enqueue(std::move(operation));
  // The operation and its tensors stay in use until it has ended.
  Guarded([&] { WaitOn(&direct_, result.done); },
          [&](const Status& thrown) {
            Break(thrown);
            while (!result.done) ::usleep(100);
          });
  return result.status;
}

void RankSet::Post(std::unique_ptr<Operation> operation) {
  enum : int { kAttended, kUnattended, kDone };
  auto state = std::make_shared<std::atomic<int>>(kAttended);
  operation->done = [this, state, done = std::move(operation->done)](const Status& status) {
    if (state->exchange(kDone) == kUnattended) --unattended_;
    done(status);
  };
  // What a GPU does ends when the GPU has come to it, which may need what this thread enqueues
  // next.
  const bool on_host = operation->request.device == nullptr;
  direct_.Enqueue(std::move(operation));
  Waiter waiter = MakeWaiter();
  bool busy = false;  // then another thread sees to it, which this one would only slow down
  do {
    if (direct_.Pump(&busy)) waiter.Reset();
    if (state->load() == kDone) return;
  } while (on_host && !busy && waiter.Linger());
  CompleteIfBroken(&direct_);
  // This may be one of a few threads, and if all of them blocked, their peers could wait forever.
  ++unattended_;
  if (state->exchange(kUnattended) == kDone) {
    state->store(kDone);
    --unattended_;
    return;
  }
  WakeProgress();
}

void RankSet::WaitOn(Channel* channel, const std::atomic<bool>& flag) {
  Waiter waiter = MakeWaiter();
  auto done = [&] { return flag.load(std::memory_order_acquire); };
  while (!done()) {
    if (channel->Pump()) {
      waiter.Reset();
    } else if (!done()) {
      waiter.Pause([&] { return channel->Pump() || done(); });
    }
  }
}

// Others use the memory of a message that has begun, so its rank must not go on without it.
Status RankSet::StartMessage(const std::shared_ptr<Message>& message) {
  return Guarded([&] { return messages_.Start(message), Status(); },
                 [&](const Status& thrown) { return Break(thrown), thrown; });
}

Status RankSet::AwaitMessage(Message* message, double seconds) {
  return Guarded([&] { return WaitForMessage(message, seconds), Status(); },
                 [&](const Status& thrown) { return Break(thrown), thrown; });
}

void RankSet::WaitForMessage(Message* message, double seconds) {
  auto ended = [&] { return message->over.load(std::memory_order_acquire); };
  messages_.Advance();
  if (ended() || seconds == 0) return;
  messages_.BeginWait(message);
  Waiter waiter = MakeWaiter();
  Deadline deadline(seconds);
  while (!ended() && (seconds < 0 || !deadline.Passed())) {
    if (messages_.Advance()) {
      waiter.Reset();
    } else {
      waiter.Pause([&] { return messages_.Advance() || ended(); });
    }
  }
  messages_.EndWait(message);
}

// ---- join ---------------------------------------------------------------------------------------

Status RankSet::Join(int* last) {
  joining_since_ = NowSeconds();
  Status status = WaitForJoins(last);
  joining_since_ = 0;
  return status;
}

Status RankSet::WaitForJoins(int* last) {
  Waiter waiter = MakeWaiter();
  // Fails on all ranks a step that failed on this one: zeros for the rest of it would be wrong.
  plans_.CancelRuns();
  // Completes this rank's own operations first, so that none is in progress once all have joined.
  while (!Idle()) {
    if (direct_.Pump() || gradients_.Pump()) waiter.Reset();
    waiter.Pause([&] { return direct_.Pump() || gradients_.Pump() || Idle(); });
  }

  // A rank that fails must not take a ticket: the others would consider it joined.
  Status broken = direct_.Failure();
  if (!broken.ok()) return broken;

  Joining joining;
  joining.tickets = shm()->TakeJoinTicket(topology().JobRank(topology().local_rank));
  waiter.Reset();
  for (;;) {
    bool over = JoinOver(joining, last);
    if (ServeJoined(&joining)) {
      waiter.Reset();
      continue;
    }
    // Before `over`, because all ranks may take their tickets after a failure, too.
    Status failure = JoinFailure(joining);
    if (!failure.ok()) {
      // The others must see the reason before they see that this rank has left. Its own next
      // operation must not take over the exchange that join() leaves behind.
      Break(failure);
      return failure;
    }
    if (over && Idle()) return {};
    waiter.Pause([&] { return ServeJoined(&joining) || JoinOver(joining, last); });
  }
}

// Whether all ranks have joined, so that this rank is no longer needed.
bool RankSet::JoinOver(const Joining& joining, int* last) const {
  if (topology().num_nodes > 1) {
    bool owner = topology().local_rank < topology().owners;
    if (owner && !(joining.direct.over && joining.gradients.over)) return false;
    if (topology().local_rank == 0) shm()->EndJoin(joining.tickets, joining.direct.last);
    return shm()->JoinEnded(joining.tickets, last);
  }
  uint64_t micros = 0;
  bool over = shm()->JoinTickets() >= joining.tickets;
  if (over) *last = shm()->LastJoined(&micros);
  return over;
}

// Returns true on progress.
bool RankSet::ServeJoined(Joining* joining) {
  bool moved = false;
  auto serve = [&](Channel* channel, JoinedChannel* joined) {
    moved = channel->EnqueueJoined(joining->tickets, joined) || moved;
    if (joined->run != 0) plans_.SkipRun(static_cast<int64_t>(joined->run));
    moved = channel->Pump() || moved;
  };
  serve(&direct_, &joining->direct);
  serve(&gradients_, &joining->gradients);
  return moved;
}

// Returns an error if a channel has failed or, unless the join is over, if a peer is gone that
// would be awaited forever: it has not joined or, between nodes, it no longer serves other nodes.
Status RankSet::JoinFailure(const Joining& joining) const {
  for (const JoinedChannel* channel : {&joining.direct, &joining.gradients}) {
    if (!channel->failure.ok()) return channel->failure;
  }
  std::string text;
  int code = shm()->Failure(&text);
  if (code != 0) return {static_cast<Code>(code), text};
  const std::string own = std::to_string(topology().JobRank(shm()->rank()));
  for (int p = 0; p < shm()->size(); ++p) {
    const PeerState state = shm()->Peer(p);
    const bool dead = state == PeerState::kDead;
    if (p == shm()->rank() || (!dead && state != PeerState::kLeft)) continue;
    // Looked at after the peer, which may have seen the end of the join before this rank.
    const bool all_joined = shm()->JoinTickets() >= joining.tickets;
    int last = 0;
    if ((all_joined && !dead) || JoinOver(joining, &last)) continue;
    return {Code::kRemote,
            "rank " + std::to_string(topology().JobRank(p)) + (dead ? " died" : " has ended") +
                (all_joined ? " while rank " + own + " waited in join()"
                            : " before it called join(), for which rank " + own + " waits")};
  }
  return {};
}

// An idle progress thread waits for this notification. A busy one may be asleep although peers have
// made progress, because this thread held the channel's lock then.
void RankSet::WakeProgress() {
  if (!progress_idle_) return shm()->RingSelf();
  std::lock_guard<std::mutex> lock(progress_mutex_);
  progress_wanted_.notify_one();
}

Status RankSet::BeginPlan(std::shared_ptr<const PlanInfo> info, int64_t* run) {
  Status status = plans_.Begin(std::move(info), run);
  // Begin may have enqueued the exchange of an empty run, or the marker of one that was given up.
  if (!gradients_.Idle()) WakeProgress();
  return status;
}

void RankSet::SubmitBucket(int64_t run, int bucket, std::unique_ptr<Operation> operation) {
  const Request& request = operation->request;
  bool small = request.bytes() <= kInlineBytes && request.device == nullptr;
  plans_.Arrive(run, bucket, std::move(operation));
  if (small) {
    double until = NowSeconds() + spin_seconds_;
    bool moved = true, busy = false;
    while (!gradients_.Idle() && !busy && (moved || NowSeconds() < until)) {
      moved = gradients_.Pump(&busy);
    }
    if (gradients_.Idle()) return;
  }
  CompleteIfBroken(&gradients_);
  WakeProgress();
}

void RankSet::EndPlan(int64_t run, std::function<void(const Status&)> done) {
  std::shared_ptr<EmptyRun> empty;
  Status status = plans_.End(run, &empty);
  if (!status.ok() || empty == nullptr) return done(status);
  empty->WhenDone(std::move(done));
}

void RankSet::ProgressLoop() {
  // TensorFlow computes on all cores meanwhile, and each poll of MPI would wait for its turn. In a
  // node peers are awaited by yielding, which short slices made slightly dearer.
  if (topology().num_nodes > 1) TakeShortSlices();
  Waiter waiter = MakeWaiter();
  while (!stopping_) {
    if (!NeedsProgress()) {
      waiter.Reset();
      std::unique_lock<std::mutex> lock(progress_mutex_);
      progress_idle_ = true;
      progress_wanted_.wait(lock, [&] { return stopping_ || NeedsProgress(); });
      progress_idle_ = false;
      continue;
    }
    auto pump = [&] { return gradients_.Pump() | (unattended_ > 0 && direct_.Pump()); };
    if (pump()) {
      waiter.Reset();
    } else {
      waiter.Pause([&] { return pump() || !NeedsProgress() || stopping_; });
    }
  }
}

bool RankSet::Inspect(double seconds,
                      const std::function<void(Operation*, const std::vector<int>&)>& look) {
  bool direct = direct_.Inspect(seconds, look);
  return gradients_.Inspect(seconds, look) && direct;
}

}  // namespace smddp
