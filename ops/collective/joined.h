// The requests of a rank that has called join(): it contributes zeros, or nothing, so that its
// peers' collectives can complete.
#pragma once

#include <cstddef>
#include <vector>

#include "collective/request.h"
#include "core/topology.h"
#include "transport/shm/shm_group.h"

namespace smddp {

// Upper limit of the part sizes that are gathered before the parts themselves; see JoinedMove.
constexpr size_t kPartSizesBytes = 4096;

// The request of a joined rank, derived from the header of a peer's first chunk. Where zeros would
// be wrong (a minimum, a broadcast from this rank, an alltoall), the request matches nobody's, so
// the operation fails on all ranks. `memory` holds the zeros and must outlive the request.
Request JoinedRequest(const SlotHeader& peer, const Topology& topo, std::vector<char>* memory);

// Whether nodes whose ranks have all joined can take part: true of sums, averages and barriers.
bool ServedByJoinedNodes(const Request& request);

}  // namespace smddp
