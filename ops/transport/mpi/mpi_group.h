// Peers on other nodes: MPI's non-blocking collectives on a communicator of their own.
#pragma once

#include <memory>

#include "transport/mpi/mpi_library.h"
#include "transport/peer_group.h"

namespace smddp {

// `comm` is used by this group alone, which frees it: collectively, in the same order on all ranks.
std::unique_ptr<PeerGroup> MakeMpiGroup(const MpiLibrary* mpi, MpiHandle comm);

}  // namespace smddp
