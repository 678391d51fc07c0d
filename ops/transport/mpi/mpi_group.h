// PeerGroup over MPI: non-blocking collectives on a communicator of its own.
#pragma once

#include <memory>

#include "transport/mpi/mpi_library.h"
#include "transport/peer_group.h"

namespace smddp {

// The group owns `comm` and frees it, which is collective: in the same order on all ranks.
std::unique_ptr<PeerGroup> MakeMpiGroup(const MpiLibrary* mpi, MpiHandle comm);

}  // namespace smddp
