// JobContext: everything about the job that is settled once, at init; and Connection: where the
// ranks of one process set meet.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collective/collective.h"
#include "core/agreement.h"
#include "core/config.h"
#include "core/topology.h"
#include "engine/connect/settlement.h"
#include "engine/trace/timeline.h"
#include "transport/alarm.h"
#include "transport/mpi/mpi_library.h"
#include "transport/shm/segment.h"
#include "transport/shm/shm_group.h"

namespace smddp {

struct JobContext {
  Config config;
  std::unique_ptr<MpiLibrary> mpi;  // null for a job of one rank
  LaunchInfo launch;
  Timeline timeline;
};

// Who is where, the memory that the ranks of this node share, and the groups that carry bytes
// between nodes.
struct Connection {
  Topology topology;
  Segment segment;
  std::vector<char> private_memory;  // instead of a segment, for a job of one rank
  std::unique_ptr<ShmGroup> shm;
  bool reads_peers = false;                // see ChannelResources
  std::vector<ChannelResources> channels;  // kChannels of them
  std::unique_ptr<Alarm> alarm;            // of the first rank of each node of a job; else null

  size_t StagingBytes() const;  // of this rank
};

// Finds the launcher, opens MPI, and connects all ranks of the job. `ranks` unless empty: the job
// is these ranks of the launcher's, renumbered in this order; one that is not listed is a job of
// its own. Fails on all ranks unless the listed ranks gave the same list, and `terms` allow it.
// Begins the timeline, if there is to be one.
Status ConnectJob(const Config& config, const std::vector<int>& ranks, const Terms& terms,
                  JobContext* context, std::unique_ptr<Connection>* connection);

// Connects some ranks of the job (job ranks, ascending). All ranks of the job take part, and all
// fail if one does; *connection stays null on those that are not listed.
Status ConnectSet(const JobContext& context, const Topology& job, const std::vector<int>& ranks,
                  const GatherBlocks& gather, std::unique_ptr<Connection>* connection);

}  // namespace smddp
