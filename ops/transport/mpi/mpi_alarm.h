// Alarm over MPI.
#pragma once

#include <memory>
#include <vector>

#include "transport/alarm.h"
#include "transport/mpi/mpi_calls.h"

namespace smddp {

// `comm` contains all ranks, and is used by the alarm only; `firsts`: the first rank of each node.
std::unique_ptr<Alarm> MakeMpiAlarm(const MpiCalls* mpi, MpiHandle comm, std::vector<int> firsts,
                                    int node);

}  // namespace smddp
