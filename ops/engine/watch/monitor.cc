#include "engine/watch/monitor.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>  // for back_inserter
#include <utility>   // for exchange

#include "collective/header_exchange.h"
#include "core/c_numbers.h"
#include "core/deadline.h"
#include "core/detached_thread.h"
#include "core/guarded.h"
#include "core/log.h"
#include "engine/channel.h"
#include "engine/watch/rank_list.h"
#include "engine/watch/signals.h"
#include "engine/watch/tell_nodes.h"

namespace smddp {
namespace {

constexpr int kTickMs = 50;
// The last counters that a rank published before it left may still be unprocessed.
constexpr double kGrace = 0.15;
// An operation that has waited so long is probably what SIGTERM will end.
constexpr double kReadySeconds = 0.1;
// The monitor of a process that runs at all, on a busy machine too, has looked meanwhile.
constexpr double kStillSeconds = 1;
// Where others go on without it, a process that stood still for so long is given up.
constexpr double kSilentSeconds = 15;
// What a thread waits for so long after SIGINT did not just end.
constexpr double kInterruptSeconds = 0.2;
constexpr char kNoMemory[] = "a rank of this job has no memory left";
enum : int { kAsking, kMayInterrupt, kMayNot };

// Where an operation's limit comes from.
const char* NameOfLimit(const Request& request) {
  return request.timeout_seconds > 0 ? "its timeout" : "SMDDP_TIMEOUT_SECONDS";
}

// The operation and its first tensors.
std::string DescribeOperation(const Operation& operation) {
  const Request& request = operation.request;
  std::string text = request.Title() + ", " + std::to_string(request.bytes()) + " bytes";
  std::string lines = request.Describe();
  size_t at = lines.find('\n');
  for (int shown = 0; at != std::string::npos && at + 1 < lines.size(); ++shown) {
    if (shown == 6) return text + ", ...)";
    size_t end = lines.find('\n', at + 1);
    text += (shown == 0 ? " (" : ", ") + lines.substr(at + 1, end - at - 1);
    at = end;
  }
  return text.find('(', request.Title().size()) != std::string::npos ? text + ")" : text;
}

}  // namespace

Monitor::Monitor(Watched* watched, const Config& config, const Topology& topology, ShmGroup* shm,
                 Alarm* alarm)
    : watched_(watched),
      config_(config),
      topo_(topology),
      shm_(shm),
      alarm_(alarm),
      gone_seconds_(topo_.local_size, -1.0),
      beats_(topo_.local_size),
      still_seconds_(topo_.local_size) {}

void Monitor::Start() {
  thread_ = std::thread([this] { Loop(); });
  while (!alive_) ::usleep(200);
}

void Monitor::Stop() {
  stopping_ = true;
  WakeMonitor();
  if (thread_.joinable()) thread_.join();
  UnwatchTermination();
  UnwatchInterrupts();
}

void Monitor::Loop() {
  shm_->MarkAlive(topo_.rank);  // here, since the robust mutex belongs to this thread
  if (topo_.size > 1 || MayGoOnAfterTermination()) WatchTermination();
  alive_ = true;
  double last = NowSeconds();
  while (!stopping_) {
    bool terminated = WaitForTermination(kTickMs);
    double now = NowSeconds();
    // A process that was suspended must not count that time as waiting for its peers.
    GuardedTick(std::min(now - last, 4 * kTickMs / 1000.0));
    last = now;
    if (terminated && !GoesOnAfterTermination()) AnswerTermination();
    WatchInterrupts();
  }
  shm_->Leave();
}

// A rank without memory or threads cannot be watched, so its job fails. If even that takes memory,
// the next tick finds the posted failure, or tries again.
void Monitor::GuardedTick(double seconds) {
  auto tell = [this](const Status& thrown) {
    if (!broken_) Break(thrown.Within("rank " + std::to_string(topo_.rank)));
  };
  Guarded([&] { Guarded([&] { Tick(seconds); }, tell); },
          [this](const Status&) { shm_->PostFailure(static_cast<int>(Code::kSystem), kNoMemory); });
}

void Monitor::Tick(double seconds) {
  if (TakeInterrupt()) interrupted_at_ = NowSeconds();
  unflushed_ += seconds;
  if (unflushed_ > 1.0) {
    watched_->timeline()->Flush();
    unflushed_ = 0;
  }
  if (broken_) {
    return TellNodes(*shm_, alarm_, static_cast<int>(broken_by_.code()), broken_by_.message());
  }
  ListenToNodes();
  std::string text;
  int code = shm_->Failure(&text);
  if (code != 0) return Break({static_cast<Code>(code), text});
  UpdatePeers(seconds);
  Status failure;
  std::string last_words;
  auto look = [&](Operation* operation, const std::vector<int>& missing) {
    CheckOperation(operation, missing, &failure);
    if (interrupted_at_ != 0) {
      NoteInterrupt(
          "waited for " + RankList(missing, topo_.rank) + " in " + DescribeOperation(*operation),
          operation->ready);
    }
    if (!last_words.empty() || operation->waited < kReadySeconds) return;
    last_words = LogLine(LogLevel::kError, DescribeTermination(*operation, missing));
  };
  if (!watched_->InspectAll(seconds, look) && last_words.empty()) {
    last_words = LogLine(LogLevel::kError, MiddleOfCollective());
  }
  PrepareLastWords(last_words);
  CheckPlans(seconds, &failure);
  Status cycle = watched_->InspectCycles(seconds);
  if (failure.ok()) failure = std::move(cycle);
  CheckInterrupt(&failure);
  if (!failure.ok()) Break(failure);
}

// A failure on another node is a failure of this one.
void Monitor::ListenToNodes() {
  std::string text;
  int code = 0;
  if (alarm_ != nullptr && alarm_->Heard(&code, &text)) shm_->PostFailure(code, text);
}

// `since`: when that wait began.
void Monitor::NoteInterrupt(const std::string& what, double since) {
  if (since != 0 && since <= interrupted_at_ && interrupted_.empty()) interrupted_ = what;
}

// Python raises KeyboardInterrupt when its main thread comes back from where it waits, so that wait
// is to end. If it ends by itself, or the script handles SIGINT in its own way, nothing is done.
void Monitor::CheckInterrupt(Status* failure) {
  if (interrupted_at_ == 0) return;
  NoteInterrupt("waited in join()", watched_->JoiningSince());
  const std::string what = std::exchange(interrupted_, "");
  const bool lasts = NowSeconds() - interrupted_at_ >= kInterruptSeconds;
  const MayInterrupt ask = WhoMayInterrupt();
  const bool never = ask == nullptr || (may_interrupt_ && *may_interrupt_ == kMayNot);
  if (never || (lasts && what.empty())) {
    interrupted_at_ = 0;
    may_interrupt_.reset();
  } else if (lasts && may_interrupt_ == nullptr) {
    // On a thread of its own, since Python may be slow to answer.
    auto answer = std::make_shared<std::atomic<int>>(kAsking);
    auto run = [&] {
      RunDetached([ask, answer] { *answer = ask() ? kMayInterrupt : kMayNot; },
                  [answer](const Status&) { *answer = kMayNot; });
    };
    // Without a thread now, the next tick tries again.
    may_interrupt_ =
        Guarded([&] { return run(), answer; }, [](const Status&) { return decltype(answer)(); });
  } else if (lasts && *may_interrupt_ == kMayInterrupt && failure->ok()) {
    *failure = {Code::kRemote, "rank " + std::to_string(topo_.rank) +
                                   " was interrupted (SIGINT) while it " + what +
                                   "; to go on, all ranks must call shutdown() and init()"};
  }
}

void Monitor::CheckPlans(double seconds, Status* failure) {
  watched_->InspectPlans(seconds, [&](const std::string& waiting, double waited) {
    if (waited > 0) NoteInterrupt("waited in a step, " + waiting, NowSeconds() - waited);
    if (!failure->ok() || waited <= config_.timeout_seconds) return;
    *failure = {Code::kTimeout, waiting + ": that bucket was not submitted within " +
                                    FormatSeconds(waited) +
                                    " (SMDDP_TIMEOUT_SECONDS); an operation that computes its "
                                    "gradients may have failed on this rank"};
  });
}

void Monitor::UpdatePeers(double seconds) {
  ++shm_->cell(shm_->rank()).beats;
  for (int p = 0; p < shm_->size(); ++p) {
    if (p == shm_->rank()) continue;
    uint64_t beats = shm_->cell(p).beats;
    still_seconds_[p] = beats == beats_[p] ? still_seconds_[p] + seconds : 0;
    beats_[p] = beats;
    PeerState state = shm_->Peer(p);
    if (state != PeerState::kDead && state != PeerState::kLeft) continue;
    gone_seconds_[p] = gone_seconds_[p] < 0 ? 0 : gone_seconds_[p] + seconds;
  }
}

int Monitor::LocalRank(int job_rank) const {
  const auto& node = topo_.nodes[topo_.node];
  auto it = std::find(node.begin(), node.end(), job_rank);
  return it == node.end() ? kElsewhere : static_cast<int>(it - node.begin());
}

bool Monitor::GoneFor(int job_rank, double seconds) const {
  int local = LocalRank(job_rank);
  return local != kElsewhere && gone_seconds_[local] >= seconds;
}

bool Monitor::HasLeft(int job_rank) const {
  int local = LocalRank(job_rank);
  return local != kElsewhere && shm_->Peer(local) == PeerState::kLeft;
}

bool Monitor::StillFor(int job_rank, double seconds) const {
  int local = LocalRank(job_rank);
  return local != kElsewhere && still_seconds_[local] >= seconds;
}

// Whether a rank of this node does not run: it is stopped, say.
bool Monitor::StandsStill(int job_rank) const { return StillFor(job_rank, kStillSeconds); }

// Of the ranks that an operation waits for, those that stand still, if any does: the rest may wait
// for these too.
std::vector<int> Monitor::Culprits(const std::vector<int>& missing) const {
  std::vector<int> still;
  std::copy_if(missing.begin(), missing.end(), std::back_inserter(still),
               [&](int rank) { return StandsStill(rank); });
  return still.empty() ? missing : still;
}

void Monitor::CheckOperation(Operation* operation, const std::vector<int>& missing,
                             Status* failure) {
  auto gone = [&](int rank) { return GoneFor(rank, kGrace); };
  const bool others_may =
      operation->any_will_do && !std::all_of(missing.begin(), missing.end(), gone);
  for (int rank : missing) {
    if (others_may && HasLeft(rank)) continue;
    if (failure->ok() && gone(rank)) *failure = DeathOf(*operation, rank);
    if (failure->ok() && watched_->CanGoOn() && StillFor(rank, kSilentSeconds)) {
      *failure = SilenceOf(*operation, rank);
    }
  }
  // If the missing rank may be on another node, the ranks over there name it first; then those that
  // wait for it, and then those of their nodes that wait for these.
  bool elsewhere =
      operation->collective && operation->collective->MayWaitForOtherNodes() &&
      std::none_of(missing.begin(), missing.end(), [&](int rank) { return StandsStill(rank); });
  bool for_neighbours = std::none_of(missing.begin(), missing.end(),
                                     [&](int rank) { return LocalRank(rank) == kElsewhere; });
  double limit = LimitOf(*operation) + (elsewhere ? (for_neighbours ? 4 : 2) * kGrace : 0);
  if (failure->ok() && operation->waited > limit) {
    *failure = Timeout(*operation, missing, elsewhere);
  }
  if (!operation->warned && config_.stall_warning_seconds > 0 &&
      operation->waited > config_.stall_warning_seconds) {
    operation->warned = true;
    WarnOfStall(*operation, missing, elsewhere);
  }
}

Status Monitor::DeathOf(const Operation& operation, int rank) const {
  const int local = LocalRank(rank);  // which is of this node, or nobody would know
  bool dead = shm_->Peer(local) == PeerState::kDead;
  std::string who =
      "rank " + std::to_string(rank) + " (process " + std::to_string(shm_->cell(local).pid) + ")";
  std::string how = dead ? " died" : " has ended or called shutdown()";
  std::string remedy = "; this job cannot go on: restart it from its last checkpoint";
  if (watched_->CanGoOn()) remedy.clear();
  const std::string exception = shm_->Exception(local);
  if (!exception.empty()) {
    how = " has ended with an exception (" + exception + ")";
  } else if (!dead) {
    remedy = std::string(". ") + kEndedEarly;
  }
  return {Code::kRemote, who + how + " while rank " + std::to_string(topo_.rank) +
                             " waited for it in " + DescribeOperation(operation) + ", for " +
                             FormatSeconds(operation.waited) + remedy};
}

Status Monitor::SilenceOf(const Operation& operation, int rank) const {
  return {Code::kRemote, "rank " + std::to_string(rank) + " has stood still for " +
                             FormatNumber(kSilentSeconds) + " s, stopped perhaps, while rank " +
                             std::to_string(topo_.rank) + " waited for it in " +
                             DescribeOperation(operation)};
}

double Monitor::LimitOf(const Operation& operation) const {
  const double own = operation.request.timeout_seconds;
  return own > 0 ? own : config_.timeout_seconds;
}

std::string Monitor::DescribeLimit(const Operation& operation) const {
  const std::string name = NameOfLimit(operation.request), limit = FormatNumber(LimitOf(operation));
  return operation.request.timeout_seconds > 0 ? name + " of " + limit + " s" : name + "=" + limit;
}

Status Monitor::Timeout(const Operation& operation, const std::vector<int>& missing,
                        bool elsewhere) const {
  return {Code::kTimeout,
          "rank " + std::to_string(topo_.rank) + " waited " + FormatSeconds(operation.waited) +
              " for " + RankList(Culprits(missing), topo_.rank) + " in " +
              DescribeOperation(operation) + ", which is over " + DescribeLimit(operation) +
              "; see what those ranks are doing, or raise the limit if they are only slow" +
              (elsewhere ? " (they may wait for another node themselves)" : "")};
}

void Monitor::WarnOfStall(const Operation& operation, const std::vector<int>& missing,
                          bool elsewhere) const {
  LogWarning("stalled: waited " + FormatSeconds(operation.waited) + " for " +
             RankList(Culprits(missing), topo_.rank) + " in " + DescribeOperation(operation) +
             ". They are stopped, slow, out of data, or took another path "
             "through the program. " +
             (elsewhere ? "Or they wait for another node themselves. " : "") + "It fails after " +
             FormatNumber(LimitOf(operation)) + " s (" + NameOfLimit(operation.request) + ")");
}

// May be called again if it throws.
void Monitor::Break(const Status& own) {
  shm_->PostFailure(static_cast<int>(own.code()), own.message());
  // All ranks of the node report the failure that was posted first.
  std::string text = own.message();
  int posted = shm_->Failure(&text);
  Status failure = posted == 0 ? own : Status(static_cast<Code>(posted), text);
  PrepareLastWords("");
  if (watched_->CanGoOn() && failure.code() == Code::kRemote) {
    LogWarning(failure.message());  // others tell what becomes of the job
  } else {
    LogError(failure.message() + "\n" + LastCollectives());
  }
  broken_by_ = failure;
  TellNodes(*shm_, alarm_, static_cast<int>(failure.code()), failure.message());
  watched_->FailAll(failure);
  broken_ = true;
}

// Reports what this rank knows, then ends the process. Usually a peer has died: the launcher
// terminates the survivors, and kills those that take too long. Tick needs the grace period to act
// on a death on this node; a death on another node cannot be detected, so there is nothing to wait
// for.
void Monitor::AnswerTermination() {
  Deadline deadline(2 * kGrace);
  bool pending = true, told = SaidLastWords();
  int dead = -1;
  while (!broken_ && (pending || dead >= 0) && !deadline.Passed()) {
    // Each at once: launchers have been seen to kill a quarter of a second after SIGTERM.
    for (int p = 0; dead < 0 && p < shm_->size(); ++p) {
      if (p == shm_->rank() || shm_->Peer(p) != PeerState::kDead) continue;
      dead = p;
      LogError("rank " + std::to_string(shm_->cell(dead).job_rank) + " (process " +
               std::to_string(shm_->cell(dead).pid) + ") died; ending on SIGTERM");
    }
    Tick(kTickMs / 1000.0);
    pending = false;
    auto look = [&](Operation* operation, const std::vector<int>& missing) {
      pending = true;
      if (dead < 0 && !told) LogError(DescribeTermination(*operation, missing));
      told = true;
    };
    if (!watched_->InspectAll(0, look)) {
      pending = true;
      if (!broken_ && dead < 0 && !told) LogError(MiddleOfCollective());
      told = true;
    }
    if (topo_.local_size == 1) break;
    ::usleep(kTickMs * 1000);
  }
  if (!broken_ && dead >= 0) LogError(LastCollectives());
  Terminate();
}

std::string Monitor::DescribeTermination(const Operation& operation,
                                         const std::vector<int>& missing) const {
  return "ended by SIGTERM while waiting for " + RankList(Culprits(missing), topo_.rank) + " in " +
         DescribeOperation(operation) + Elsewhere();
}

// What is known while a thread of this rank is at work on a channel, inside MPI perhaps.
std::string Monitor::MiddleOfCollective() const {
  return "ended by SIGTERM in the middle of a collective" + Elsewhere() + "; " + LastCollectives();
}

std::string Monitor::LastCollectives() const {
  return "last collectives of this rank:\n" + watched_->FlightRecord();
}

std::string Monitor::Elsewhere() const {
  if (topo_.num_nodes == 1) return "";
  return "; a rank on another node may have ended: see the launcher's output";
}

}  // namespace smddp
