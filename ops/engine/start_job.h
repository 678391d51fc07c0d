// StartJob: from nothing to a job whose ranks run.
#pragma once

#include <memory>
#include <vector>

#include "core/agreement.h"
#include "core/config.h"
#include "core/status.h"
#include "engine/communicator.h"

namespace smddp {

// Connects the ranks (ConnectJob) and starts their threads. Succeeds or fails on all ranks: what
// one of them lacks is told to the others, which wait for it. `bootstrap`: null for the launcher's.
Status StartJob(const Config& config, const std::vector<int>& ranks, const SharedSettings& terms,
                const std::shared_ptr<Bootstrap>& bootstrap, std::unique_ptr<Communicator>* out);

}  // namespace smddp
