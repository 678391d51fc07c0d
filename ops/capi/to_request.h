// Turns the C API's requests into the engine's.
#pragma once

#include <cstdint>
#include <vector>

#include "capi/smddp.h"
#include "collective/request.h"
#include "core/status.h"
#include "core/topology.h"

namespace smddp {

// Whether the caller knows the parts of an allgather or alltoall, or the ranks gather their sizes
// (engine/part_sizes.h).
enum class Parts { kKnown, kGathered };

// Validates and copies the arguments; if this fails, nothing has been sent.
Status ToRequest(const smddp_request& in, const Topology& topo, Parts parts, Request* out);

// Once the output of an allgather or alltoall of Parts::kGathered has been allocated, for rows[r]
// rows from rank r: what `stream` has not finished yet may use its memory. A rank that has no rows
// of its own has its device from there.
Status PlaceOutput(const std::vector<int64_t>& rows, const void* out, void* stream,
                   Request* request);

}  // namespace smddp
