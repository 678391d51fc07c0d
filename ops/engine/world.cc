#include "engine/world.h"

#include <unistd.h>

#include <cstring>

#include "core/log.h"
#include "transport/mpi_group.h"

namespace smddp {
namespace {

// What each rank tells the others while they find out who shares memory.
struct Announcement {
  char key[128];  // Segment::NodeKey, and the emulated node
  int pid;
  int fd;           // of the node's segment, from its first rank
  int ok;           // this rank has attached
  uint64_t cookie;  // written into the segment by its creator
};

constexpr size_t kCookieOffset = 4096 + 2048;  // in the group header's spare page

Topology TopologyOf(const MpiLibrary& mpi, const std::vector<Announcement>& all) {
  std::vector<std::string> keys;
  for (const Announcement& one : all) keys.emplace_back(one.key);
  return Topology::FromKeys(mpi.rank(), keys);
}

Status Exchange(const MpiLibrary& mpi, const Announcement& own, std::vector<Announcement>* all) {
  all->resize(mpi.size());
  return mpi.Allgather(&own, sizeof own, all->data());
}

uint64_t* Cookie(void* memory) {
  return reinterpret_cast<uint64_t*>(static_cast<char*>(memory) + kCookieOffset);
}

std::string KeyOf(const Config& config, const MpiLibrary& mpi) {
  std::string key = Segment::NodeKey();
  if (config.nodes > 0) {
    int nodes = config.nodes < mpi.size() ? config.nodes : mpi.size();
    key =
        "node " + std::to_string(static_cast<int64_t>(mpi.rank()) * nodes / mpi.size()) + " " + key;
  }
  return key;
}

// One attempt: the first rank of each node creates, the others attach, all learn who could.
Status TryShare(const MpiLibrary& mpi, World* world, Announcement* own,
                std::vector<Announcement>* all) {
  Status status = Exchange(mpi, *own, all);
  if (!status.ok()) return status;
  world->topology = TopologyOf(mpi, *all);
  const Topology& topo = world->topology;
  size_t bytes = ShmGroup::BytesNeeded(topo.local_size, world->chunk_bytes());
  Status created;
  if (topo.local_rank == 0) {
    created = world->segment.Create(bytes);
    own->fd = world->segment.fd();
    own->ok = created.ok();
    own->cookie = static_cast<uint64_t>(::getpid()) * 0x9e3779b97f4a7c15ull + 1;
    if (created.ok()) *Cookie(world->segment.memory()) = own->cookie;
  }
  status = Exchange(mpi, *own, all);
  if (!created.ok()) return created;
  if (!status.ok()) return status;
  const Announcement& leader = (*all)[topo.nodes[topo.node][0]];
  if (topo.local_rank != 0) {
    Status attached = world->segment.Attach(leader.pid, leader.fd, bytes);
    own->ok = attached.ok() && *Cookie(world->segment.memory()) == leader.cookie;
    if (!attached.ok()) LogWarning("shares no memory with its node: " + attached.message());
  }
  status = Exchange(mpi, *own, all);
  world->segment.CloseDescriptor();
  return status;
}

// Groups of ranks that proved to share memory; a node in which somebody could not attach is
// taken apart, and its ranks talk through MPI.
Status ShareMemory(const Config& config, const MpiLibrary& mpi, World* world) {
  Announcement own{};
  std::string key = KeyOf(config, mpi);
  std::strncpy(own.key, key.c_str(), sizeof own.key - 1);
  own.pid = static_cast<int>(::getpid());
  std::vector<Announcement> all;
  for (int attempt = 0; attempt < 2; ++attempt) {
    Status status = TryShare(mpi, world, &own, &all);
    if (!status.ok()) return status;
    bool everybody = true;
    for (const Announcement& one : all) everybody = everybody && one.ok;
    if (everybody) return {};
    bool whole = true;
    for (int r : world->topology.nodes[world->topology.node]) whole = whole && all[r].ok;
    if (!whole) {
      std::string alone = "rank " + std::to_string(mpi.rank());
      std::memset(own.key, 0, sizeof own.key);
      std::strncpy(own.key, alone.c_str(), sizeof own.key - 1);
    }
    world->segment = Segment();
  }
  return {Code::kSystem, "the ranks of this node could not map a shared segment"};
}

Status ConnectNodes(World* world) {
  const Topology& topo = world->topology;
  for (int lane = 0; lane < kLanes; ++lane) {
    MpiHandle everybody = 0, peers = 0;
    Status status = world->mpi->Split(0, topo.rank, &everybody);
    if (!status.ok()) return status;
    bool owner = topo.local_rank < topo.owners;
    // Ranks that own no share are together in a communicator that nobody uses.
    status = world->mpi->Split(owner ? topo.local_rank : topo.owners, topo.node, &peers);
    if (!status.ok()) return status;
    world->lanes[lane].world = MakeMpiGroup(world->mpi.get(), everybody);
    if (owner) world->lanes[lane].cross = MakeMpiGroup(world->mpi.get(), peers);
  }
  return {};
}

}  // namespace

size_t World::chunk_bytes() const {
  if (config.chunk_bytes != 0) return config.chunk_bytes;
  return topology.num_nodes > 1 ? 1 << 20 : 256 << 10;
}

size_t World::StagingBytes() const {
  return ShmGroup::BytesNeeded(topology.local_size, chunk_bytes()) / topology.local_size;
}

Status ConnectWorld(const Config& config, World* world) {
  world->config = config;
  LaunchInfo launch = ReadLaunchInfo();
  if (launch.size > 1) {
    world->mpi = std::make_unique<MpiLibrary>();
    Status status = MpiLibrary::Open(launch, config.mpi_library, world->mpi.get());
    if (!status.ok()) return status;
    status = ShareMemory(config, *world->mpi, world);
    if (!status.ok()) return status;
  } else {
    world->topology = Topology::FromKeys(0, std::vector<int>{0});
    world->private_memory.assign(ShmGroup::BytesNeeded(1, world->chunk_bytes()) + 64, 0);
  }
  void* memory = world->segment.memory();
  if (memory == nullptr) {
    auto address = reinterpret_cast<uintptr_t>(world->private_memory.data());
    memory = reinterpret_cast<void*>((address + 63) / 64 * 64);
  }
  const Topology& topo = world->topology;
  world->shm =
      std::make_unique<ShmGroup>(memory, topo.local_rank, topo.local_size, world->chunk_bytes());
  world->lanes.resize(kLanes);
  for (int lane = 0; lane < kLanes; ++lane) {
    world->lanes[lane].topology = &world->topology;
    world->lanes[lane].shm = world->shm.get();
    world->lanes[lane].index = lane;
  }
  if (topo.num_nodes == 1) return {};
  if (!world->mpi->multiple_threads()) {
    return {Code::kSystem,
            "MPI was initialised without thread support, which a job on several nodes needs; call "
            "smddp_tf.init() before mpi4py initialises MPI, or let mpi4py ask for "
            "MPI_THREAD_MULTIPLE (its default)"};
  }
  return ConnectNodes(world);
}

}  // namespace smddp
