// Peers that are threads of one process: the reference transport of the contract tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/peer_group.h"

namespace smddp {

// Returns one connected group per rank. Operations of more than `limit` bytes are refused, as MPI
// refuses them from 2 GiB on.
std::vector<std::unique_ptr<PeerGroup>> MakeInprocGroups(int size, size_t limit = SIZE_MAX);

}  // namespace smddp
