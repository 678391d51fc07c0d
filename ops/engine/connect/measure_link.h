// Measures what messages and bytes cost between nodes, at init, in less than 100 ms.
#pragma once

#include "core/topology.h"
#include "core/tuning.h"
#include "transport/mpi/mpi_library.h"
#include "transport/peer_group.h"

namespace smddp {

// The costs of exchanges between the two ranks of a group, which both call this. The smallest of a
// few rounds counts, since what disturbs a round only adds to it.
Status MeasureLink(PeerGroup* pair, Tuning* tuning);

// Called by all ranks of the job; does nothing unless there are several nodes and the costs are to
// be measured. The first ranks of the nodes measure in pairs, all pairs at once, and all ranks get
// the largest of each cost.
Status MeasureBetweenNodes(const MpiLibrary& mpi, const Topology& topo,
                           const MpiLibrary::Problem& problem, Tuning* tuning);

}  // namespace smddp
