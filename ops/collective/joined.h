// What a rank asks for after join(), so that the others' collectives can go on: zeros, or nothing.
#pragma once

#include <cstddef>
#include <vector>

#include "collective/request.h"
#include "core/topology.h"
#include "transport/shm/shm_group.h"

namespace smddp {

// Of part sizes that are gathered before the parts themselves, at most; see JoinedMove.
constexpr size_t kPartSizesBytes = 4096;

// The request of a rank that has joined, from what a peer wrote before its first chunk. Where zeros
// would not do (a minimum, a broadcast from this rank, an exchange), it matches nobody's, so that
// the operation fails on all ranks. `memory` holds the zeros and lives as long as the request.
Request JoinedRequest(const SlotHeader& peer, const Topology& topo, std::vector<char>* memory);

// Whether nodes of which all ranks have joined can take part: in sums, averages and barriers.
bool ServedByJoinedNodes(const Request& request);

}  // namespace smddp
