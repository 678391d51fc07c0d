// Settlement: before anything is shared, the ranks tell each other what they were started with.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/agreement.h"
#include "core/config.h"
#include "core/status.h"

namespace smddp {

// An allgather over all ranks of the job: `all` gets a block of `bytes` from each.
using GatherBlocks = std::function<Status(const void* own, size_t bytes, void* all)>;

// `terms` and what the core adds to them: its options, its version, and how it lays out memory
// that ranks share.
Terms WithCore(Terms terms, const Config& config);

// Fails on all `size` ranks if one cannot start, and on all of `members` (this rank's job) if their
// terms differ. Costs one small allgather; a larger one when something is to be said.
Status Settle(const Terms& own, int rank, int size, const std::vector<int>& members,
              const GatherBlocks& gather);

}  // namespace smddp
