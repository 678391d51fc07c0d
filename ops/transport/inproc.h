// Peers that are threads of one process: the reference transport of the contract tests.
#pragma once

#include <memory>
#include <vector>

#include "transport/peer_group.h"

namespace smddp {

// One group a rank, all connected.
std::vector<std::unique_ptr<PeerGroup>> MakeInprocGroups(int size);

}  // namespace smddp
