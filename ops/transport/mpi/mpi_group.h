// PeerGroup over MPI: non-blocking collectives on a communicator of its own.
#pragma once

#include <climits>
#include <memory>

#include "transport/mpi/mpi_calls.h"
#include "transport/peer_group.h"

namespace smddp {

// The group owns `comm` and frees it, which is collective: in the same order on all ranks. More
// than `limit` bytes at once are refused; MPI counts are int.
std::unique_ptr<PeerGroup> MakeMpiGroup(const MpiCalls* mpi, MpiHandle comm,
                                        size_t limit = INT_MAX);

}  // namespace smddp
