// Peers that are threads of one process: MpiGroup, on an MPI library that is none. It has Open
// MPI's rules of buffers (mpi_part.h), and no network.
#pragma once

#include <climits>
#include <cstddef>
#include <memory>
#include <vector>

#include "transport/peer_group.h"

namespace smddp {

// Returns one connected group per rank. Operations of more than `limit` bytes are refused, as MPI
// refuses them from 2 GiB on.
std::vector<std::unique_ptr<PeerGroup>> MakeInprocGroups(int size, size_t limit = INT_MAX);

}  // namespace smddp
