// Before anything is shared, the ranks compare the settings they were started with.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/agreement.h"
#include "core/config.h"
#include "core/status.h"

namespace smddp {

// An allgather over all ranks of the job: `all` receives a block of `bytes` from each.
using GatherBlocks = std::function<Status(const void* own, size_t bytes, void* all)>;

// Adds the core's own terms: its options, its version, and the layout of the memory that ranks
// share.
SharedSettings WithCore(SharedSettings terms, const Config& config);

// Fails on all `size` ranks if one cannot start, and on all of `members` (this rank's job) if their
// terms differ. Costs one small allgather, and a larger one only if there is something to report.
Status CompareSettings(const SharedSettings& own, int rank, int size,
                       const std::vector<int>& members, const GatherBlocks& gather);

}  // namespace smddp
