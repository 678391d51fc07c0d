// The time that init() may take: for all ranks to come, and as much again to connect them.
#pragma once

#include "core/config.h"
#include "core/status.h"
#include "transport/mpi/mpi_library.h"

namespace smddp {

// Returns once all ranks are here. From then on *problem becomes an error when the rest of init()
// takes too long: a rank was stopped, or some pair of hosts cannot reach each other. Either error
// is final for this process, since others may still be inside MPI.
Status MeetAll(const Config& config, MpiLibrary* mpi, MpiLibrary::Problem* problem);

}  // namespace smddp
