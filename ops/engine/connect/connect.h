// JobContext: the state of the job that is fixed at init. Connection: the resources shared by the
// ranks of one process set.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collective/collective.h"
#include "core/agreement.h"
#include "core/config.h"
#include "core/topology.h"
#include "engine/connect/compare_settings.h"
#include "engine/trace/timeline.h"
#include "transport/alarm.h"
#include "transport/bootstrap/callbacks.h"
#include "transport/bootstrap/launcher_env.h"
#include "transport/device_group.h"
#include "transport/shm/segment.h"
#include "transport/shm/shm_group.h"

namespace smddp {

struct JobContext {
  Config config;
  std::shared_ptr<Bootstrap> bootstrap;  // null for a job of one rank
  // Once all ranks have begun to connect: why this rank should no longer wait for the others.
  Bootstrap::Problem problem;
  // What this rank fails with is not known to the others, which wait for it.
  bool fails_alone = false;
  LaunchInfo launch;
  Timeline timeline;
};

// The topology, the memory shared by the ranks of this node, and the groups that carry bytes
// between nodes.
struct Connection {
  Topology topology;
  Segment segment;
  std::unique_ptr<ShmGroup> shm;
  bool reads_peers = false;                // see ChannelResources
  std::vector<ChannelResources> channels;  // kChannels of them
  std::unique_ptr<DeviceGroup> devices;    // null: tensors are never reduced by their devices
  std::unique_ptr<Alarm> alarm;            // between nodes; see transport/alarm.h

  size_t StagingBytes() const;  // of this rank
};

// Detects the launcher, opens MPI, and connects all ranks of the job. Unless `ranks` is empty, the
// job is these launcher ranks, renumbered in this order; a rank that is not listed becomes a job of
// one rank. Fails on all ranks unless the listed ranks passed the same list and their `terms`
// agree. Starts the timeline if one is configured. context->bootstrap, if it is set, takes the
// place of a launcher and MPI.
Status ConnectJob(const Config& config, const std::vector<int>& ranks, const SharedSettings& terms,
                  JobContext* context, std::unique_ptr<Connection>* connection);

// Connects some ranks of the job (job ranks, ascending). All ranks of the job take part, and all
// fail if one does; *connection stays null on ranks that are not listed. `problem`: why the others
// are no longer to be waited for, or OK; what it returns, and what MPI fails with, is of the code
// kRemote or kTimeout.
Status ConnectSet(JobContext* context, const Topology& job, const std::vector<int>& ranks,
                  const GatherBlocks& gather, const std::function<Status()>& problem,
                  std::unique_ptr<Connection>* connection);
// The same by the listed ranks alone: `members` is a bootstrap of theirs, in this order.
Status ConnectMembers(JobContext* context, const Topology& job, const std::vector<int>& ranks,
                      const Bootstrap& members, const std::function<Status()>& problem,
                      std::unique_ptr<Connection>* connection);

}  // namespace smddp
