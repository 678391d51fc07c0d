#include "engine/connect/connect.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "core/c_numbers.h"
#include "core/chunk_bytes.h"
#include "core/log.h"
#include "core/reminder.h"
#include "engine/connect/choose_job.h"
#include "engine/connect/init_limit.h"
#include "transport/mpi/mpi_library.h"
#include "transport/nccl/nccl_group.h"
#include "transport/shm/peer_memory.h"

namespace smddp {
namespace {

// Exchanged by the ranks to find out which of them share memory.
struct Announcement {
  char key[128];  // Segment::NodeKey, and the emulated node
  int pid;
  int fd;                           // of the node's segment, on its first rank
  int ok;                           // this rank has created the segment, or attached to it
  uint64_t secret, secret_address;  // a word of this process, and its address
  int reads_peers;                  // this rank has read the words of all ranks of its node
};

constexpr size_t kCookieOffset = 4096 + 2048;  // in the group header's spare page

// An allgather over the ranks of the set: `all` receives one announcement from each.
using Exchange = std::function<Status(const Announcement& own, std::vector<Announcement>* all)>;

uint64_t* Cookie(void* memory) {
  return reinterpret_cast<uint64_t*>(static_cast<char*>(memory) + kCookieOffset);
}

std::string KeyOf(const Config& config, const Bootstrap& ranks) {
  std::string key = Segment::NodeKey();
  if (config.nodes > 0) {
    int nodes = config.nodes < ranks.size() ? config.nodes : ranks.size();
    key = "node " + std::to_string(static_cast<int64_t>(ranks.rank()) * nodes / ranks.size()) +
          " " + key;
  }
  return key;
}

size_t ChunkBytes(const Config& config, const Topology& topo) {
  // A slot is divided into one stripe per peer (collective/host/exchange.h).
  constexpr size_t kLaneBytes = 64, kUnit = 256;
  size_t least = (kLaneBytes * static_cast<size_t>(topo.size) + kUnit - 1) / kUnit * kUnit;
  if (config.chunk_bytes != 0) return std::max(config.chunk_bytes, least);
  if (topo.num_nodes == 1) return std::max<size_t>(256 << 10, least);
  return std::max(ChunkBytesBetweenNodes(topo.num_nodes, topo.owners), least);
}

size_t SegmentBytes(const Config& config, const Topology& topo) {
  return ShmGroup::BytesNeeded(topo.local_size, ChunkBytes(config, topo));
}

// Whether this rank can read the memory of all ranks of its node.
bool ReadsPeers(const Topology& topo, const std::vector<Announcement>& all) {
  for (int r : topo.nodes[topo.node]) {
    if (!CanReadPeer(all[r].pid, all[r].secret_address, all[r].secret)) return false;
  }
  return true;
}

// The first rank of each node creates a segment, the others attach to it, and all learn which ranks
// succeeded. Always takes two exchanges; a local failure is returned in *problem.
Status MapSegments(const Config& config, size_t bytes, const Exchange& exchange,
                   Connection* connection, Announcement* own, std::vector<Announcement>* all,
                   Status* problem) {
  const Topology& topo = connection->topology;
  Segment* segment = &connection->segment;
  Range part = ShmGroup::PartOf(topo.local_rank, topo.local_size, ChunkBytes(config, topo));
  own->ok = 1;
  own->pid = static_cast<int>(::getpid());
  own->secret = Segment::NewCookie();
  own->secret_address = reinterpret_cast<uintptr_t>(&own->secret);
  if (config.single_copy) LetPeersRead();
  if (topo.local_rank == 0) {
    *problem = segment->Create(bytes);
    if (problem->ok()) *problem = segment->Commit(part);
    own->fd = segment->fd();
    own->ok = problem->ok();
    if (own->ok) *Cookie(segment->memory()) = own->secret;
  }
  Status status = exchange(*own, all);
  if (!status.ok()) return status;

  const Announcement& leader = (*all)[topo.nodes[topo.node][0]];
  if (topo.local_rank != 0) {
    if (leader.ok) *problem = segment->Attach(leader.pid, leader.fd, bytes);
    own->ok = leader.ok && problem->ok() && *Cookie(segment->memory()) == leader.secret;
    if (own->ok) *problem = segment->Commit(part);
    own->ok = own->ok && problem->ok();
  }
  own->reads_peers = config.single_copy && ReadsPeers(topo, *all);
  status = exchange(*own, all);
  segment->CloseDescriptor();
  if (!status.ok()) return status;

  connection->reads_peers = true;
  for (int r : topo.nodes[topo.node]) connection->reads_peers &= (*all)[r].reads_peers != 0;
  return {};
}

// Groups ranks into nodes that provably share memory. A node in which some rank could not attach is
// split up, and its ranks communicate through MPI.
Status ShareMemory(const Bootstrap& ranks, const Bootstrap::Problem& problem, Config* config,
                   Connection* connection) {
  Exchange exchange = [&](const Announcement& own, std::vector<Announcement>* all) {
    all->resize(ranks.size());
    return ranks.Allgather(&own, sizeof own, all->data(), problem);
  };
  Announcement own{};
  std::string key = KeyOf(*config, ranks);
  std::strncpy(own.key, key.c_str(), sizeof own.key - 1);
  std::vector<Announcement> all;
  Status unmapped;
  for (int attempt = 0; attempt < 2; ++attempt) {
    Status status = exchange(own, &all);
    if (!status.ok()) return status;
    std::vector<std::string> keys;
    for (const Announcement& one : all) keys.emplace_back(one.key);
    connection->topology = Topology::FromKeys(ranks.rank(), keys);
    const Topology& topo = connection->topology;
    size_t bytes = SegmentBytes(*config, topo);
    status = MapSegments(*config, bytes, exchange, connection, &own, &all, &unmapped);
    if (!status.ok()) return status;
    bool everybody = true, whole = true;
    for (const Announcement& one : all) everybody = everybody && one.ok;
    if (everybody) return {};
    for (int r : topo.nodes[topo.node]) whole = whole && all[r].ok;
    if (!unmapped.ok()) LogWarning("shares no memory with its node: " + unmapped.message());
    if (!whole) {
      std::string alone = "rank " + std::to_string(ranks.rank());
      std::memset(own.key, 0, sizeof own.key);
      std::strncpy(own.key, alone.c_str(), sizeof own.key - 1);
    }
    connection->segment = Segment();
  }
  if (!unmapped.ok()) return unmapped;
  for (Status told;; ::usleep(1000)) {  // by the rank that could not
    if (!(told = problem()).ok()) return told;
  }
}

// Connects all nodes of the job.
Status ConnectAlarm(const Bootstrap& ranks, const Bootstrap::Problem& problem,
                    Connection* connection) {
  const Topology& topo = connection->topology;
  std::vector<int> firsts;
  for (const std::vector<int>& node : topo.nodes) firsts.push_back(node[0]);
  return ranks.MakeAlarm(firsts, topo.node, problem, &connection->alarm);
}

// Called by all ranks of the job; `connection` is null on those that are not in the set.
Status ConnectNodes(const Bootstrap& ranks, const Bootstrap::Problem& problem,
                    Connection* connection) {
  for (int channel = 0; channel < kChannels; ++channel) {
    if (connection == nullptr) {
      for (int group = 0; group < 2; ++group) {
        std::unique_ptr<PeerGroup> none;
        Status status = ranks.MakeGroup(Bootstrap::kNoColor, 0, problem, &none);
        if (!status.ok()) return status;
      }
      continue;
    }
    const Topology& topo = connection->topology;
    ChannelResources& resources = connection->channels[channel];
    Status status = ranks.MakeGroup(0, topo.rank, problem, &resources.all_ranks);
    if (!status.ok()) return status;
    bool owner = topo.local_rank < topo.owners;
    int color = owner ? topo.local_rank : Bootstrap::kNoColor;
    status = ranks.MakeGroup(color, topo.node, problem, &resources.share_peers);
    if (!status.ok()) return status;
  }
  return {};
}

void MakeChannelResources(const Config& config, Connection* connection) {
  const Topology& topo = connection->topology;
  connection->shm = std::make_unique<ShmGroup>(connection->segment.memory(), topo.local_rank,
                                               topo.local_size, ChunkBytes(config, topo));
  connection->channels.resize(kChannels);
  for (int channel = 0; channel < kChannels; ++channel) {
    connection->channels[channel].topology = &topo;
    connection->channels[channel].shm = connection->shm.get();
    connection->channels[channel].index = channel;
    connection->channels[channel].reads_peers = connection->reads_peers;
    connection->channels[channel].staging_choice.Force(ToStagingMode(config.staging));
    connection->channels[channel].devices = connection->devices.get();
  }
}

Topology TopologyOfSet(const Topology& job, const std::vector<int>& ranks) {
  std::vector<int> node_of(job.size), keys;
  for (int node = 0; node < job.num_nodes; ++node) {
    for (int r : job.nodes[node]) node_of[r] = node;
  }
  for (int r : ranks) keys.push_back(node_of[r]);
  auto own_place = std::find(ranks.begin(), ranks.end(), job.rank);
  return Topology::FromKeys(static_cast<int>(own_place - ranks.begin()), keys, ranks);
}

// Maps the memory of a process set; one that is not a member only exchanges.
Status MapSet(const Config& config, const std::vector<int>& ranks, const Exchange& exchange,
              bool member, Connection* connection) {
  Announcement own{};
  std::vector<Announcement> all;
  Status unmapped, status;
  if (member) {
    size_t bytes = SegmentBytes(config, connection->topology);
    status = MapSegments(config, bytes, exchange, connection, &own, &all, &unmapped);
  } else {
    for (int i = 0; i < 2 && status.ok(); ++i) status = exchange(own, &all);
  }
  if (!status.ok()) return status;
  if (!unmapped.ok()) return unmapped.Within("the memory of the process set");
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].ok) continue;
    return {Code::kSystem, "rank " + std::to_string(ranks[i]) +
                               " could not map the process set's memory; its own error says why"};
  }
  if (member) MakeChannelResources(config, connection);
  return {};
}

// Adds to the terms the error of a timeline that cannot be written.
void StartTimeline(int rank, SharedSettings* terms, JobContext* context) {
  if (!terms->problem.empty() || context->config.timeline.empty()) return;
  terms->problem = context->timeline.Start(context->config.timeline, rank).message();
}

// MPI_Init waits for all ranks, without a limit, and cannot be left.
Status BeginMpi(const JobContext& context, MpiLibrary* mpi, std::string* refused) {
  const double seconds = context.config.stall_warning_seconds;
  Reminder reminder(seconds, "init() has waited for the other ranks for " + FormatNumber(seconds) +
                                 " s, in MPI_Init. All ranks must call it, and reach each other: "
                                 "python -m smddp_tf.doctor under the same launcher tells");
  return MpiLibrary::Open(context.launch, context.config.mpi_library, mpi, refused);
}

// Opens MPI, unless the job has another bootstrap. An error here is of this rank alone.
Status Begin(JobContext* context, SharedSettings* terms) {
  if (context->bootstrap != nullptr) return {};
  auto mpi = std::make_shared<MpiLibrary>();
  context->bootstrap = mpi;
  std::string refused;
  Status status = BeginMpi(*context, mpi.get(), &refused);
  if (!status.ok()) return terms->problem.empty() ? status : Status(Code::kSystem, terms->problem);
  if (terms->problem.empty()) terms->problem = refused;
  return {};
}

// Until all ranks have settled their terms, a problem on this rank must not keep it from meeting
// the others.
Status MeetRanks(const std::vector<int>& ranks, SharedSettings terms, JobContext* context) {
  Status status = Begin(context, &terms);
  if (!status.ok()) return status;
  Bootstrap* all = context->bootstrap.get();
  Bootstrap::Problem& problem = context->problem;
  status = MeetAll(context->config, all, &problem);
  if (!status.ok()) return status;
  context->fails_alone = true;
  std::vector<int> members = ranks;
  auto own = std::find(members.begin(), members.end(), all->rank());
  int rank = own == members.end() ? 0 : static_cast<int>(own - members.begin());
  if (members.empty() || !ListProblem(members, all->size()).empty()) {
    rank = all->rank();
    members.resize(all->size());
    std::iota(members.begin(), members.end(), 0);
  } else if (own == members.end()) {
    members = {all->rank()};
  }
  context->timeline.NumberFilesBy(all->rank());
  StartTimeline(rank, &terms, context);
  Status gathered;
  status = CompareSettings(WithCore(terms, context->config), all->rank(), all->size(), members,
                           [&](const void* block, size_t bytes, void* blocks) {
                             return gathered = all->Allgather(block, static_cast<int>(bytes),
                                                              blocks, problem);
                           });
  context->fails_alone = status.ok() || !gathered.ok();
  if (!status.ok()) return status;
  return ChooseJob(context->config.single_process ? std::vector<int>{all->rank()} : ranks, problem,
                   all);
}

}  // namespace

size_t Connection::StagingBytes() const {
  return ShmGroup::BytesNeeded(topology.local_size, shm->chunk_bytes()) / topology.local_size;
}

Status ConnectJob(const Config& config, const std::vector<int>& ranks, const SharedSettings& terms,
                  JobContext* context, std::unique_ptr<Connection>* out) {
  context->config = config;
  auto connection = std::make_unique<Connection>();
  Topology& topo = connection->topology;
  context->launch = ReadLaunchInfo(::getenv, config.single_process);
  const LaunchInfo& launch = context->launch;
  const bool has_bootstrap = context->bootstrap != nullptr;
  if (has_bootstrap || launch.size != 1) {
    // Another library may have initialized MPI already, which the environment does not show.
    if (!has_bootstrap && !launch.refusal.empty() && !MpiLibrary::IsRunning()) {
      return {Code::kSystem, launch.refusal};
    }
    Status status = MeetRanks(ranks, terms, context);
    if (status.ok()) {
      status =
          ShareMemory(*context->bootstrap, context->problem, &context->config, connection.get());
    }
    if (!status.ok()) return status;
  } else {
    SharedSettings own = terms;
    StartTimeline(0, &own, context);
    if (!own.problem.empty()) return {Code::kSystem, own.problem};
    std::string refusal = ListProblem(ranks, 1);
    if (!refusal.empty()) return {Code::kUsage, refusal};
    topo = Topology::FromKeys(0, std::vector<int>{0});
    Status status = connection->segment.CreatePrivate(SegmentBytes(config, topo));
    if (!status.ok()) return status;
  }
  // Process sets have none: their ranks and those of the job would have to agree on an order.
  connection->devices = NcclGroup::Make(context->config);
  MakeChannelResources(context->config, connection.get());
  *out = std::move(connection);
  if (topo.num_nodes == 1) return {};
  Status status = context->bootstrap->BetweenNodes();
  if (status.ok()) status = ConnectNodes(*context->bootstrap, context->problem, out->get());
  return status.ok() ? ConnectAlarm(*context->bootstrap, context->problem, out->get()) : status;
}

Status ConnectSet(JobContext* context, const Topology& job, const std::vector<int>& ranks,
                  const GatherBlocks& gather, const std::function<Status()>& problem,
                  std::unique_ptr<Connection>* out) {
  auto connection = std::make_unique<Connection>();
  connection->topology = TopologyOfSet(job, ranks);
  Exchange exchange = [&](const Announcement& own, std::vector<Announcement>* all) {
    std::vector<Announcement> job_wide(job.size);
    Status status = gather(&own, sizeof own, job_wide.data());
    all->clear();
    for (int r : ranks) all->push_back(job_wide[r]);
    return status;
  };
  const bool member = std::find(ranks.begin(), ranks.end(), job.rank) != ranks.end();
  Status status = MapSet(context->config, ranks, exchange, member, connection.get());
  if (!status.ok()) return status;
  if (connection->topology.num_nodes > 1) {
    status = ConnectNodes(*context->bootstrap, problem, member ? connection.get() : nullptr);
    if (status.code() == Code::kSystem) status = {Code::kRemote, status.message()};
  }
  if (!status.ok()) static_cast<void>(connection.release());  // another thread is inside MPI
  if (member) *out = std::move(connection);
  return status;
}

Status ConnectMembers(JobContext* context, const Topology& job, const std::vector<int>& ranks,
                      const Bootstrap& members, const std::function<Status()>& problem,
                      std::unique_ptr<Connection>* out) {
  auto connection = std::make_unique<Connection>();
  connection->topology = TopologyOfSet(job, ranks);
  Exchange exchange = [&](const Announcement& own, std::vector<Announcement>* all) {
    all->resize(ranks.size());
    return members.Allgather(&own, sizeof own, all->data(), problem);
  };
  Status status = MapSet(context->config, ranks, exchange, true, connection.get());
  if (status.ok() && connection->topology.num_nodes > 1) {
    status = ConnectNodes(members, problem, connection.get());
    if (status.code() == Code::kSystem) status = {Code::kRemote, status.message()};
  }
  if (status.ok()) *out = std::move(connection);
  return status;
}

}  // namespace smddp
