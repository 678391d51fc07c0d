// Alarm over MPI.
#pragma once

#include <memory>

#include "transport/alarm.h"
#include "transport/mpi/mpi_calls.h"

namespace smddp {

// `comm` contains the first rank of each node, and is used by the alarm only.
std::unique_ptr<Alarm> MakeMpiAlarm(const MpiCalls* mpi, MpiHandle comm);

}  // namespace smddp
