// World: everything about the job that is settled once, at init: who is where, the memory that the
// ranks of this node share, and the MPI that carries bytes between nodes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collective/collective.h"
#include "core/config.h"
#include "core/topology.h"
#include "transport/mpi_library.h"
#include "transport/segment.h"
#include "transport/shm_group.h"

namespace smddp {

struct World {
  Config config;
  Topology topology;
  std::unique_ptr<MpiLibrary> mpi;  // null for a job of one rank
  Segment segment;
  std::vector<char> private_memory;  // instead of a segment, in tests and for one rank
  std::unique_ptr<ShmGroup> shm;
  std::vector<Lane> lanes;  // kLanes of them

  size_t chunk_bytes() const;
  size_t StagingBytes() const;  // of this rank
};

// Finds the launcher, opens MPI, maps the segment and connects to the other nodes.
Status ConnectWorld(const Config& config, World* world);

}  // namespace smddp
