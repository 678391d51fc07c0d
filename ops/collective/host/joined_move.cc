#include "collective/host/joined_move.h"

#include <algorithm>
#include <cstring>

#include "collective/joined.h"

namespace smddp {

JoinedMove::JoinedMove(ChannelResources* resources, const Request* request)
    : Pipeline(resources, request, request->joined.chunks, resources->topology->num_nodes == 1) {}

void JoinedMove::Stage(size_t i) {
  // In the exchange of part sizes that comes before an allgather, zeros stand for a rank that has
  // nothing. Nobody reads our part of the data themselves.
  size_t bytes = std::min(kPartSizesBytes, shm_->chunk_bytes());
  if (i == 0) std::memset(Slot(shm_->rank(), 0), 0, bytes);
}

}  // namespace smddp
