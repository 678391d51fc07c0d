#include "job.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "os_calls.h"
#include "script.h"

namespace smddp_sim {
namespace {

constexpr double kHangs = 40;  // seconds of the simulated clock
// A rank whose operation has another name than its peers' waits for its turn before.
constexpr double kDeathIsTold = 1.1;
constexpr double kLauncher = 4;  // timeouts after which it ends those that only wait
constexpr size_t kPage = 4096;

}  // namespace

// What the ranks of a node share, with a page behind it that nobody may touch.
struct Job::Node {
  Node(int ranks, size_t chunk_bytes) {
    bytes = (smddp::ShmGroup::BytesNeeded(ranks, chunk_bytes) + kPage - 1) / kPage * kPage;
    memory =
        ::mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char* behind = static_cast<char*>(memory) + bytes;
    if (memory == MAP_FAILED || ::mprotect(behind, kPage, PROT_NONE) != 0) std::abort();
  }
  ~Node() { ::munmap(memory, bytes + kPage); }
  size_t bytes;
  void* memory;
};

Job::Job(const Program& program, bool trace)
    : program_(program),
      scheduler_(program.seed),
      network_(&scheduler_, program.network),
      devices_(&scheduler_, program),
      last_joined_(program.items.size(), std::vector<int>(program.size, -1)),
      trace_(trace) {
  ResetSystem();
  scheduler_.set_trace(trace);
  scheduler_.set_preemption(program.preemption);
  MakeNodes();
}

Job::~Job() = default;

void Job::MakeNodes() {
  for (int r = 0; r < program_.size; ++r) {
    topologies_.push_back(
        std::make_unique<smddp::Topology>(smddp::Topology::FromKeys(r, program_.node_of)));
  }
  const smddp::Topology& topo = *topologies_[0];
  for (const auto& ranks : topo.nodes) {
    nodes_.push_back(std::make_unique<Node>(static_cast<int>(ranks.size()), program_.chunk_bytes));
  }
  if (topo.num_nodes > 1) alarms_ = network_.ConnectAlarms(topo.nodes);
  world_.resize(smddp::kChannels);
  cross_.resize(smddp::kChannels);
  for (int channel = 0; channel < smddp::kChannels && topo.num_nodes > 1; ++channel) {
    world_[channel] = network_.Connect(topo.job_ranks);
    cross_[channel].resize(program_.size);
    for (int owner = 0; owner < topo.owners; ++owner) {
      std::vector<int> ranks;
      for (const auto& node : topo.nodes) ranks.push_back(node[owner]);
      auto groups = network_.Connect(ranks);
      for (size_t n = 0; n < ranks.size(); ++n) cross_[channel][ranks[n]] = std::move(groups[n]);
    }
  }
}

std::unique_ptr<smddp::Connection> Job::Connect(int rank) {
  auto connection = std::make_unique<smddp::Connection>();
  connection->topology = *topologies_[rank];
  const smddp::Topology& topo = connection->topology;
  connection->shm = std::make_unique<smddp::ShmGroup>(nodes_[topo.node]->memory, topo.local_rank,
                                                      topo.local_size, program_.chunk_bytes);
  connection->reads_peers = program_.reads_peers;
  if (topo.num_nodes > 1) connection->alarm = std::move(alarms_[rank]);
  if (program_.on_devices) connection->devices = devices_.Join(rank);
  for (int index = 0; index < smddp::kChannels; ++index) {
    connection->channels.emplace_back();
    smddp::ChannelResources& resources = connection->channels.back();
    resources.topology = &connection->topology;
    resources.shm = connection->shm.get();
    resources.index = index;
    resources.reads_peers = program_.reads_peers;
    resources.devices = connection->devices.get();
    if (topo.num_nodes == 1) continue;
    resources.piece_bytes = program_.chunk_bytes;
    if (program_.disseminates) resources.exchange.linear_nodes = 1;
    resources.all_ranks = std::move(world_[index][rank]);
    resources.share_peers = std::move(cross_[index][rank]);
  }
  return connection;
}

void Job::Complain(const std::string& what) {
  char time[32];
  std::snprintf(time, sizeof time, "%.6f ", scheduler_.now());
  if (complaints_.size() < 8) complaints_.push_back(time + what);
  if (trace_) std::printf("%s%s\n", time, what.c_str());
}

void Job::Begin(int rank, int item) {
  if (trace_) std::printf("%.6f rank %d comes to item %d\n", scheduler_.now(), rank, item);
  for (const Fault& fault : program_.faults) {
    if (fault.rank != rank || fault.item != item) continue;
    scheduler_.At(scheduler_.now() + fault.delay, [this, &fault] { Strike(fault); });
  }
}

void Job::Strike(const Fault& fault) {
  if (scheduler_.dead(fault.rank) || scripts_[fault.rank].finished()) return;
  if (trace_) {
    std::printf("%.6f rank %d %s\n", scheduler_.now(), fault.rank, FaultName(fault.kind));
  }
  if (fault.kind != FaultKind::kPause && broken_at_ == 0) {
    broken_at_ = scheduler_.now();
    if (program_.num_nodes > 1) {
      scheduler_.At(broken_at_ + kLauncher * program_.timeout, [this] { EndWhoJoined(); });
    }
  }
  switch (fault.kind) {
    case FaultKind::kPause:
    case FaultKind::kStop:
      scheduler_.Stop(fault.rank, scheduler_.now() + fault.seconds);
      break;
    case FaultKind::kDie:
      scheduler_.Kill(fault.rank);
      break;
    case FaultKind::kNetwork:
      network_.Break(fault.rank);
      break;
    case FaultKind::kLeave:
      scripts_[fault.rank].LeaveSoon();
      break;
  }
}

// A rank in join() waits as long as the others have data. That a rank of another node has failed
// tells the first one of its node, or the next if that has died. If neither can, only the launcher
// ends the others.
void Job::EndWhoJoined() {
  bool all = true, one = false;
  for (int r = 0; r < program_.size; ++r) {
    if (scheduler_.dead(r) || scripts_[r].finished()) continue;
    one = true;
    all = all && scripts_[r].joins();
  }
  for (int r = 0; r < program_.size && all; ++r) {
    if (scripts_[r].finished() || scheduler_.dead(r)) continue;
    if (AlarmsWork()) {
      Complain("rank " + std::to_string(r) + " waits in join() though another node has failed");
    }
    scheduler_.Kill(r);
  }
  if (one && !all && scheduler_.now() < broken_at_ + kHangs) {
    scheduler_.At(scheduler_.now() + 1, [this] { EndWhoJoined(); });
  }
}

// Whether each node's first rank could hear and tell of what happened or, after its end, another.
bool Job::AlarmsWork() const {
  auto speaks = [&](const std::vector<int>& ranks) {
    std::set<int> hurt;
    bool ended = true;
    for (const Fault& fault : program_.faults) {
      if (fault.kind == FaultKind::kPause || !std::count(ranks.begin(), ranks.end(), fault.rank)) {
        continue;
      }
      hurt.insert(fault.rank);
      ended = ended && (fault.kind == FaultKind::kDie || fault.kind == FaultKind::kLeave);
    }
    return hurt.count(ranks[0]) == 0 || (ended && hurt.size() < ranks.size());
  };
  const auto& nodes = topologies_[0]->nodes;
  return std::all_of(nodes.begin(), nodes.end(), speaks);
}

// Who only waits for others to end although one has failed is ended by the launcher.
bool Job::EndsAnyhow() const {
  return Broken() && AllEnd() && scheduler_.now() > broken_at_ + kLauncher * program_.timeout;
}

bool Job::AllEnd() const {
  for (int r = 0; r < program_.size; ++r) {
    if (!scheduler_.dead(r) && !scripts_[r].ending()) return false;
  }
  return true;
}

std::vector<std::string> Job::Run() {
  for (int r = 0; r < program_.size; ++r) scripts_.emplace_back(this, r);
  for (int r = 0; r < program_.size; ++r) {
    scheduler_.Spawn(r, "script", true, [this, r] { scripts_[r].Main(); });
  }
  CheckEnd(scheduler_.Run(kHangs));
  return complaints_;
}

// Between the end of a slot's chunk and the next slot nothing is ever written.
void Job::CheckSlots() {
  const smddp::Topology& topo = *topologies_[0];
  for (size_t n = 0; n < nodes_.size(); ++n) {
    int ranks = static_cast<int>(topo.nodes[n].size());
    smddp::ShmGroup shm(nodes_[n]->memory, 0, ranks, program_.chunk_bytes);
    for (int r = 0; r < ranks; ++r) {
      for (uint64_t slot = 0; slot < smddp::kChannels * smddp::kSlots; ++slot) {
        char* at = shm.slot(r, static_cast<int>(slot % smddp::kChannels), slot / smddp::kChannels);
        auto end = (reinterpret_cast<uintptr_t>(at) + program_.chunk_bytes + kPage - 1) / kPage;
        for (char* p = at + program_.chunk_bytes; p < reinterpret_cast<char*>(end * kPage); ++p) {
          if (*p == 0) continue;
          return Complain("memory behind a slot was written");
        }
      }
    }
  }
}

// Where one node is all there is and a death all that happens, nobody waits for the timeout, and
// who died is named.
void Job::CheckDeaths() {
  if (program_.num_nodes > 1 || program_.faults.size() != 1 || !Broken()) return;
  const Fault& fault = program_.faults[0];
  if (fault.kind != FaultKind::kDie) return;
  std::string name = "rank " + std::to_string(fault.rank) + " ";
  for (const Script& script : scripts_) {
    if (!script.failed()) continue;
    if (script.failed_at() > broken_at_ + kDeathIsTold) Complain("a death was noticed late");
    if (script.failure().find(name) == std::string::npos) {
      Complain("the failure does not name rank " + std::to_string(fault.rank) + ": " +
               script.failure());
    }
  }
}

void Job::CheckEnd(Scheduler::End end) {
  if (end == Scheduler::End::kTooLong) {
    std::string text = "the job hangs. What the ranks do:\n";
    for (int r = 0; r < program_.size; ++r) {
      text += "    rank " + std::to_string(r) + ": " + scripts_[r].doing() +
              (scheduler_.dead(r)       ? " (dead)"
               : scripts_[r].finished() ? " (done)"
                                        : "") +
              "\n";
    }
    Complain(text + "  and what they wait for:\n" + scheduler_.Describe());
    return;
  }
  for (const Script& script : scripts_) script.CheckEnd(&complaints_);
  CheckDeaths();
  for (const auto& told : last_joined_) {
    int last = -1;
    for (int rank : told) {
      if (rank < 0) continue;
      if (last >= 0 && rank != last) Complain("join() told ranks different last ranks");
      last = rank;
    }
    if (last >= program_.size) Complain("join() told a rank that is none");
  }
  if (!network_.abuse().empty()) Complain("misuse of the network: " + network_.abuse());
  if (!devices_.abuse().empty()) Complain("misuse of the devices: " + devices_.abuse());
  CheckSlots();
}

}  // namespace smddp_sim
