#include "engine/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>
#include <utility>  // for move

#include "collective/staging_report.h"
#include "core/c_numbers.h"
#include "core/deadline.h"
#include "core/log.h"
#include "core/reminder.h"
#include "engine/connect/binding.h"
#include "engine/set_creation_wait.h"
#include "engine/shutdown_wait.h"
#include "engine/watch/monitor.h"
#include "engine/watch/rank_list.h"
#include "kernels/cpu/reduce.h"

namespace smddp {
namespace {

constexpr double kDefaultSpinSeconds = 50e-6;
constexpr int kGoneMicroseconds = 500;  // polling interval of AnnounceDeparture
// For the monitors to tell the other nodes, before they notice that connections are closed.
constexpr double kToldSeconds = 0.25;
// For MPI to hand over a message that does not fit its smallest buffers.
constexpr double kHandOverSeconds = 0.1;

double SpinSeconds(const Config& config, const Topology& topo) {
  int micros = config.spin_microseconds;
  if (micros >= 0) return micros * 1e-6;
  long cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  return topo.local_size <= cores ? kDefaultSpinSeconds : 0;
}

Selector MakeSelector(const Config& config) {
  Selector selector;
  selector.forced_allreduce = config.allreduce;
  return selector;
}

// The least number that no process set of this process has had, in earlier jobs either: a graph may
// still have it, and must not find another set.
std::atomic<int> next_number{1};

// What the members of a set tell each other before they connect.
struct Membership {
  int32_t next_number;
  int32_t left;     // the least number of such a set that this rank has left; 0: none
  char ranks[248];  // in words, perhaps cut
};

std::string FormatRanks(const std::vector<int>& ranks) {
  std::string text = "[";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text + "]";
}

}  // namespace

Communicator::Communicator(std::unique_ptr<JobContext> context,
                           std::unique_ptr<Connection> everybody)
    : context_(std::move(context)),
      selector_(MakeSelector(context_->config)),
      timeline_(context_->timeline),
      spin_seconds_(SpinSeconds(context_->config, everybody->topology)),
      everybody_(std::make_unique<RankSet>(
          0, std::move(everybody), &selector_, &recorder_, &timeline_, spin_seconds_,
          [this](const Status& why, bool first) { Break(why, first); })) {}

Communicator::~Communicator() {
  everybody_->StopProgress();
  if (monitor_ != nullptr) monitor_->Stop();
}

Status Communicator::Start(const std::function<Status()>& all_started) {
  monitor_ = std::make_unique<Monitor>(this, context_->config, topology(), everybody_->shm(),
                                       everybody_->alarm());
  monitor_->Start();
  everybody_->StartProgress();
  Status status = all_started();
  if (!status.ok()) return status;
  if (topology().rank == 0) WarnOfBinding();
  if (topology().rank == 0 && topology().num_nodes > 1) {
    LogInfo("between nodes: chunks of " + std::to_string(everybody_->shm()->chunk_bytes()) +
            " bytes");
  }
  return {};
}

// Only rank 0 warns: nodes are usually alike.
void Communicator::WarnOfBinding() const {
  if (!context_->launch.by_mpirun()) return;
  std::vector<int> pids;
  for (int r = 0; r < topology().local_size; ++r) pids.push_back(everybody_->shm()->cell(r).pid);
  std::string advice = BindingAdvice(pids, context_->launch.launcher);
  if (!advice.empty()) LogWarning(advice);
}

// Other nodes may wait for this rank, now or later, and cannot find out otherwise. Like
// MPI_Finalize, this takes until they leave as well.
void Communicator::AnnounceDeparture(const std::function<bool()>& stop) {
  auto sets = OwnSets();
  for (bool all = false; !all;) {
    all = true;
    for (const auto& set : sets) all = set->AnnounceDeparture() && all;
    if (all || stop()) return;
    ::usleep(kGoneMicroseconds);
  }
}

// Whoever has a failure first may be about to end its process.
void Communicator::AwaitTold() const {
  while (topology().num_nodes > 1 && NowSeconds() < told_at_) ::usleep(kGoneMicroseconds);
}

bool Communicator::Leave(bool failed) {
  AwaitTold();
  const bool broken = failed_;
  for (const auto& set : OwnSets()) set->StopProgress();
  for (const auto& set : OwnSets()) set->CloseDevices(broken || failed || !set->Idle());
  FailAll({Code::kNotInitialized, "smddp_tf was shut down on this rank"});
  if (monitor_ != nullptr) monitor_->Stop();
  monitor_.reset();
  timeline_.Stop();
  if (context_->bootstrap == nullptr) {
    everybody_->ForgetMemory();  // at once, whoever is still inside
    return true;
  }
  // The monitors report the failure, here and on the other nodes, whose MPI may still write here.
  if (broken) return CanGoOn();
  if (failed) {
    // Without waiting for an answer: the others may not come for long.
    Deadline handed_over(kHandOverSeconds);
    AnnounceDeparture([&] { return handed_over.Passed(); });
    return false;
  }
  // Others may continue for a long time, say with an evaluation on one rank. A failed rank never
  // leaves in good order, so it is not awaited.
  ShutdownWait wait(context_->config, *everybody_);
  AnnounceDeparture([&] { return wait.Pointless(); });
  context_->bootstrap->Finalize([&] { return wait.Pointless(); });
  // Between nodes MPI goes on receiving into the memory of the alarm and of the groups.
  return topology().num_nodes == 1 || CanGoOn();
}

// ---- process sets -------------------------------------------------------------------------------

std::shared_ptr<RankSet> Communicator::Find(int number, Status* why) const {
  // A shared_ptr without ownership: the set of all ranks lives as long as the communicator.
  if (number == 0) return {std::shared_ptr<void>(), everybody_.get()};
  std::lock_guard<std::mutex> lock(sets_mutex_);
  auto it = sets_.find(number);
  if (it == sets_.end()) {
    *why = {Code::kUsage, "there is no process set " + std::to_string(number) +
                              "; it was removed, or never added, or a rank of it was lost"};
    return nullptr;
  }
  if (it->second.set == nullptr) {
    *why = {Code::kUsage, "rank " + std::to_string(topology().rank) + " is not in process set " +
                              std::to_string(number) + ", whose ranks are " +
                              FormatRanks(it->second.ranks) + "; only they may use it"};
  }
  return it->second.set;
}

std::vector<int> Communicator::RanksOf(int number) const {
  if (number == 0) return topology().job_ranks;
  std::lock_guard<std::mutex> lock(sets_mutex_);
  auto it = sets_.find(number);
  return it == sets_.end() ? std::vector<int>() : it->second.ranks;
}

std::vector<std::shared_ptr<RankSet>> Communicator::OwnSets() const {
  std::vector<std::shared_ptr<RankSet>> sets;
  sets.emplace_back(std::shared_ptr<void>(), everybody_.get());
  std::lock_guard<std::mutex> lock(sets_mutex_);
  for (const auto& [number, entry] : sets_) {
    if (entry.set != nullptr) sets.push_back(entry.set);
  }
  return sets;
}

Status Communicator::Gather(const void* own, const std::vector<size_t>& bytes, void* all) {
  Request request;
  request.kind = Kind::kAllgather;
  request.dtype = DType::kUint8;
  request.name = "process sets";
  request.part_bytes = bytes;
  request.tensors = {{own, all, {static_cast<int64_t>(bytes[topology().rank])}}};
  return everybody_->Run(std::move(request));
}

Status Communicator::Agree(const std::string& text) {
  size_t size = static_cast<size_t>(topology().size), own = text.size();
  std::vector<size_t> lengths(size);
  Status status = Gather(&own, std::vector<size_t>(size, sizeof own), lengths.data());
  if (!status.ok()) return status;
  size_t total = 0;
  for (size_t length : lengths) total += length;
  std::string texts(total, '\0');
  status = Gather(text.data(), lengths, &texts[0]);
  if (!status.ok()) return status;
  size_t at = 0;
  for (size_t r = 0; r < size; at += lengths[r++]) {
    if (texts.compare(at, lengths[r], texts, 0, lengths[0]) == 0) continue;
    return {Code::kMismatch,
            "Mismatched process sets: rank 0 has [" + texts.substr(0, lengths[0]) + "], rank " +
                std::to_string(r) + " has [" + texts.substr(at, lengths[r]) +
                "]. Every rank of the job, in the set or not, must add and remove the same process "
                "sets in the same order. Nothing was changed; the job can go on."};
  }
  return {};
}

// Same outcome on all ranks, since they have agreed on the list.
Status Communicator::CheckNewSet(const std::vector<int>& ranks) const {
  int size = topology().size;
  std::string text = "process set " + FormatRanks(ranks);
  if (ranks.empty()) return {Code::kUsage, text + " is empty; it takes at least one rank"};
  if (ranks.front() < 0 || ranks.back() >= size) {
    return {Code::kUsage, text + " is out of range: there are " + std::to_string(size) +
                              " ranks, 0 to " + std::to_string(size - 1)};
  }
  if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    return {Code::kUsage, text + " has a rank twice"};
  }
  if (static_cast<int>(ranks.size()) == size) {
    return {Code::kUsage, text + " has all ranks; use global_process_set"};
  }
  std::lock_guard<std::mutex> lock(sets_mutex_);
  for (const auto& [number, entry] : sets_) {
    if (entry.of_members || entry.ranks != ranks) continue;
    return {Code::kUsage, text + " exists already, as number " + std::to_string(number) +
                              "; use that one, or remove it first"};
  }
  return {};
}

// Ranks may have been in different jobs before.
Status Communicator::ChooseNumber(int* number) {
  const int own = next_number;
  std::vector<int> all(static_cast<size_t>(topology().size));
  Status status = Gather(&own, std::vector<size_t>(all.size(), sizeof own), all.data());
  if (status.ok()) *number = *std::max_element(all.begin(), all.end());
  return status;
}

Status Communicator::AddSet(const std::vector<int>& ranks, int* number) {
  std::lock_guard<std::mutex> changing(changing_);
  const std::string what = "add_process_set(" + FormatRanks(ranks) + ")";
  Status status = Agree(what);
  if (status.ok()) status = CheckNewSet(ranks);
  if (status.ok()) status = ChooseNumber(number);
  return status.ok() ? MakeSet(what, ranks, *number) : status;
}

Status Communicator::AddSetAgain(const std::vector<int>& ranks, int number) {
  std::lock_guard<std::mutex> changing(changing_);
  const std::string what =
      "process set " + std::to_string(number) + " again as " + FormatRanks(ranks);
  Status status = Agree(what);
  return status.ok() ? MakeSet(what, ranks, number) : status;
}

Status Communicator::MakeSet(const std::string& what, const std::vector<int>& ranks, int number) {
  GatherBlocks gather = [this](const void* own, size_t bytes, void* all) {
    return Gather(own, std::vector<size_t>(topology().size, bytes), all);
  };
  std::unique_ptr<Connection> connection;
  std::optional<SetCreationWait> meeting;  // which begins when the ranks have exchanged all else
  auto problem = [&] {
    if (!meeting) meeting.emplace(context_->config, *everybody_, what);
    return meeting->Problem();
  };
  Status status = ConnectSet(context_.get(), topology(), ranks, gather, problem, &connection);
  return Keep(number, ranks, status, std::move(connection), false);
}

// `connected`: how its ranks were connected; `connection` is null on a rank that is not a member.
Status Communicator::Keep(int number, const std::vector<int>& ranks, const Status& connected,
                          std::unique_ptr<Connection> connection, bool of_members) {
  if (connected.code() == Code::kRemote || connected.code() == Code::kTimeout) {
    Break(connected, true);
  }
  std::lock_guard<std::mutex> lock(sets_mutex_);
  if (failed_) return failure_;
  if (!connected.ok()) return connected;
  std::shared_ptr<RankSet> set;
  if (connection != nullptr) {
    set = std::make_shared<RankSet>(number, std::move(connection), &selector_, &recorder_,
                                    &timeline_, spin_seconds_,
                                    [this](const Status& why, bool first) { Break(why, first); });
  }
  next_number = std::max<int>(next_number, number + 1);
  sets_[number] = {ranks, set, of_members};
  // Last, since it throws where threads have run out, and the other ranks have the set.
  if (set != nullptr) set->StartProgress();
  return {};
}

int Communicator::LeftSet(const std::vector<int>& ranks) const {
  std::lock_guard<std::mutex> lock(sets_mutex_);
  for (const auto& [number, entry] : sets_) {
    if (entry.left && entry.ranks == ranks) return number;
  }
  return 0;
}

// *left: the set exists, and all of its members have left it.
Status Communicator::AgreeOfMembers(const std::vector<int>& ranks, const Bootstrap& members,
                                    const Bootstrap::Problem& problem, int* number, bool* left) {
  Membership own{next_number, LeftSet(ranks), {}};
  std::strncpy(own.ranks, FormatRanks(ranks).c_str(), sizeof own.ranks - 1);
  std::vector<Membership> all(ranks.size());
  Status status = members.Allgather(&own, sizeof own, all.data(), problem);
  if (!status.ok()) return status;
  *number = own.next_number;
  *left = own.left != 0;
  for (size_t i = 0; i < all.size(); ++i) {
    *number = std::max(*number, all[i].next_number);
    *left = *left && all[i].left == own.left;
    if (std::strncmp(all[i].ranks, own.ranks, sizeof own.ranks) == 0) continue;
    std::string text = "Mismatched groups: rank " + std::to_string(topology().rank) +
                       " makes one of ranks " + own.ranks + ", rank " + std::to_string(ranks[i]) +
                       " one of ranks " + all[i].ranks +
                       ". All ranks must make the same groups in the same order; this job cannot "
                       "go on";
    members.TellFailure(text);
    return {Code::kRemote, text};
  }
  if (*left) *number = own.left;
  return {};
}

Status Communicator::AddSetOfMembers(const std::vector<int>& ranks, const Bootstrap& members,
                                     double limit, int* number) {
  std::lock_guard<std::mutex> changing(changing_);
  const std::string what = "making a group of ranks " + FormatRanks(ranks);
  auto own = std::lower_bound(ranks.begin(), ranks.end(), topology().rank);
  if (static_cast<int>(ranks.size()) != members.size() || own - ranks.begin() != members.rank() ||
      own == ranks.end() || *own != topology().rank) {
    return {Code::kUsage, what + ": rank " + std::to_string(topology().rank) + " is not at place " +
                              std::to_string(members.rank()) + " of " +
                              std::to_string(members.size())};
  }
  const double seconds = context_->config.stall_warning_seconds;
  Reminder reminder(seconds, what + " has waited for the other ranks for " + FormatNumber(seconds) +
                                 " s; all of them must make it");
  SetCreationWait wait(context_->config, *everybody_, what, ranks, limit);
  const auto problem = [&] { return wait.Problem(); };
  bool left = false;
  Status status = AgreeOfMembers(ranks, members, problem, number, &left);
  std::unique_ptr<Connection> connection;
  if (status.ok() && left) {
    std::lock_guard<std::mutex> lock(sets_mutex_);
    sets_[*number].left = false;
    return failed_ ? failure_ : status;
  }
  if (status.ok()) {
    status = ConnectMembers(context_.get(), topology(), ranks, members, problem, &connection);
  }
  return Keep(*number, ranks, status, std::move(connection), true);
}

void Communicator::LeaveSet(int number) {
  std::lock_guard<std::mutex> lock(sets_mutex_);
  auto it = sets_.find(number);
  if (it != sets_.end()) it->second.left = it->second.of_members;
}

// Whether all ranks of the job have added this set.
bool Communicator::IsOfAll(int number) const {
  std::lock_guard<std::mutex> lock(sets_mutex_);
  auto it = sets_.find(number);
  return it != sets_.end() && !it->second.of_members;
}

// All ranks learn whether one of them has an operation in progress.
Status Communicator::CheckRemoval(int number) {
  Status ignored;  // a rank that is not a member counts as idle
  std::shared_ptr<RankSet> set = Find(number, &ignored);
  char busy = set != nullptr && !set->Idle();
  std::vector<char> all(topology().size);
  Status status = Gather(&busy, std::vector<size_t>(all.size(), 1), all.data());
  if (!status.ok()) return status;
  auto it = std::find(all.begin(), all.end(), 1);
  if (it == all.end()) return {};
  return {Code::kUsage, "process set " + std::to_string(number) + " cannot be removed: rank " +
                            std::to_string(it - all.begin()) +
                            " has a collective under way in it; let all of them end first"};
}

Status Communicator::RemoveSet(int number) {
  std::lock_guard<std::mutex> changing(changing_);
  std::string name = "process set " + std::to_string(number);
  Status status = Agree("remove_process_set(" + std::to_string(number) + ")");
  if (!status.ok()) return status;
  if (!IsOfAll(number)) {
    return {Code::kUsage,
            number == 0 ? "the global process set cannot be removed" : "there is no " + name};
  }

  status = CheckRemoval(number);
  if (!status.ok()) return status;
  std::shared_ptr<RankSet> set;
  {
    std::lock_guard<std::mutex> lock(sets_mutex_);
    set = std::move(sets_[number].set);
    sets_.erase(number);
  }
  if (set != nullptr) set->Close({Code::kUsage, name + " was removed"});
  return {};
}

// ---- the monitor's view -------------------------------------------------------------------------

bool Communicator::InspectAll(
    double seconds, const std::function<void(Operation*, const std::vector<int>&)>& look) {
  bool all = true;
  for (const auto& set : OwnSets()) {
    all &= set->Inspect(seconds, look);
    set->InspectMessages(seconds, look);
  }
  return all;
}

void Communicator::InspectPlans(double seconds,
                                const std::function<void(const std::string&, double)>& look) {
  for (const auto& set : OwnSets()) {
    std::string waiting;
    double waited = set->InspectPlans(seconds, &waiting);
    look(waiting, waited);
  }
}

Status Communicator::InspectCycles(double seconds) {
  Status first;
  for (const auto& set : OwnSets()) {
    Status cycle = set->InspectCycles(seconds);
    if (first.ok()) first = cycle;
  }
  return first;
}

void Communicator::FailAll(const Status& failure) {
  Status first;
  {
    std::lock_guard<std::mutex> lock(sets_mutex_);
    if (!failed_) {
      failure_ = failure;
      told_at_ = NowSeconds() + kToldSeconds;
    }
    failed_ = true;
    first = failure_;
  }
  Endings endings;
  auto sets = OwnSets();  // they live until all has ended
  for (const auto& set : sets) set->Fail(first, &endings);
  for (const auto& end : endings) end();
}

// Posted where this node's monitors look, whatever the set: they propagate it, and this rank's
// monitor logs it.
void Communicator::Break(const Status& failure, bool first) {
  if (first) {
    everybody_->shm()->PostFailure(static_cast<int>(failure.code()), failure.message());
  }
  FailAll(failure);
}

void Communicator::Abort(const std::string& why) {
  Break({Code::kRemote, "rank " + std::to_string(topology().rank) + " " + why}, true);
  AwaitTold();
}

std::string Communicator::WaitsFor(int process_set, const std::string& name) const {
  Status none;
  std::shared_ptr<RankSet> set = Find(process_set, &none);
  std::string text;
  if (set == nullptr) return text;
  set->Inspect(0, [&](Operation* operation, const std::vector<int>& missing) {
    if (operation->request.run != 0 || !text.empty()) return;
    text = RankList(missing, topology().rank);
    if (operation->request.name != name) {
      text = operation->request.Title() + ", which runs first and waits for " + text;
    }
  });
  return text;
}

bool Communicator::IsAwaited(int process_set, const char* name) const {
  Status none;
  std::shared_ptr<RankSet> set = Find(process_set, &none);
  if (set == nullptr) return false;
  return set->Awaits(name ? std::optional(Request::KeyOf(name)) : std::nullopt);
}

std::string Communicator::StatsJson() const {
  ChannelStats direct, gradients;
  size_t staging = 0;
  DeviceGroupStats devices;
  auto add = [](ChannelStats* sum, const ChannelStats& one) {
    sum->operations += one.operations;
    sum->bytes += one.bytes;
    sum->awaited_seconds += one.awaited_seconds;
  };
  auto sets = OwnSets();
  for (const auto& set : sets) {
    add(&direct, set->DirectStats());
    add(&gradients, set->GradientStats());
    staging += set->StagingBytes();
    if (set->devices() != nullptr) devices.Add(set->devices()->stats());
  }
  std::ostringstream out;
  out << "{\"rank\": " << topology().rank << ", \"size\": " << topology().size << ", \"isa\": \""
      << IsaName() << "\", \"mpi\": \""
      << (context_->bootstrap != nullptr ? context_->bootstrap->name() : "none")
      << "\", \"nccl\": \"" << (devices.library.empty() ? "none" : devices.library)
      << "\", \"nccl_collectives\": " << devices.collectives
      << ", \"nccl_bytes\": " << devices.bytes << ", \"nccl_packed\": " << devices.packed
      << ", \"staging_bytes\": " << staging << ", \"process_sets\": " << sets.size()
      << ", \"collectives\": " << direct.operations << ", \"collective_bytes\": " << direct.bytes
      << ", \"awaited_seconds\": " << direct.awaited_seconds + gradients.awaited_seconds
      << ", \"buckets\": " << gradients.operations << ", \"bucket_bytes\": " << gradients.bytes
      << ", \"chunk_bytes\": " << everybody_->shm()->chunk_bytes()
      << ", \"staging\": " << StagingJson(*everybody_->shm(), topology()) << "}";
  return out.str();
}

}  // namespace smddp
