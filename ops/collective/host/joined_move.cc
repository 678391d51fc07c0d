#include "collective/host/joined_move.h"

#include <algorithm>
#include <cstring>

#include "collective/joined.h"

namespace smddp {

JoinedMove::JoinedMove(ChannelResources* resources, const Request* request)
    : Pipeline(resources, request, request->joined.chunks, resources->topology->num_nodes == 1) {}

void JoinedMove::Stage(size_t i) {
  // In the exchange of part sizes that precedes an allgather, zeros stand for a rank without data.
  // In all other operations peers do not read this slot.
  size_t bytes = std::min(kPartSizesBytes, shm_->chunk_bytes());
  if (i == 0) std::memset(Slot(shm_->rank(), 0), 0, bytes);
}

}  // namespace smddp
