// What a rank has measured of its peers' slots, for smddp_tf.stats().
#pragma once

#include <string>

#include "core/topology.h"
#include "transport/shm/shm_group.h"

namespace smddp {

// A JSON object: `writes`, how this rank writes now ("cached", "streaming", or "mixed" if not all
// kinds of operations agree), and `read_gbs`, for each peer of the node, by job rank, the GB/s at
// which this rank reads what the peer wrote in each way; the best of the kinds of operations, and
// null where nothing was measured.
std::string StagingJson(const ShmGroup& shm, const Topology& topo);

}  // namespace smddp
