// What ends the waits of init(): the time that it may take, for all ranks to come and as much again
// to connect them; and the failure of one rank alone.
#pragma once

#include "core/config.h"
#include "core/status.h"
#include "transport/bootstrap/bootstrap.h"

namespace smddp {

// Returns once all ranks are here. From then on *problem becomes an error when the rest of init()
// takes too long (a rank was stopped, or some pair of hosts cannot reach each other) or a rank
// fails alone. Such an error is final for this process over MPI, since others may still be inside
// it.
Status MeetAll(const Config& config, Bootstrap* ranks, Bootstrap::Problem* problem);
// Tells the other ranks, which wait for this one, that it fails alone, and why. Returns the error
// for this rank; theirs is the same, as their *problem. Both are final.
Status FailAlone(const Bootstrap& ranks, const Status& own);

}  // namespace smddp
