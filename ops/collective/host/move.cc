#include "collective/host/move.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/copy.h"

namespace smddp {
namespace {

size_t LargestPart(const Request& request) {
  const auto& parts = request.part_bytes;
  return parts.empty() ? 0 : *std::max_element(parts.begin(), parts.end());
}

int LocalRank(const Topology& topo, int rank) {
  const auto& node = topo.nodes[topo.node];
  return static_cast<int>(std::find(node.begin(), node.end(), rank) - node.begin());
}

}  // namespace

// Broadcast: the root stages each chunk, the other ranks copy it out of the root's slot.

ShmBroadcast::ShmBroadcast(ChannelResources* resources, const Request* request)
    : Pipeline(resources, request, ChunksOf(request->bytes(), resources->shm->chunk_bytes()), true),
      spans_(request->Spans()),
      large_(request->moved_bytes() >= kPastCachesBytes),
      root_(LocalRank(topo_, topo_.RankOf(request->root))) {}

Range ShmBroadcast::Chunk(size_t i) const {
  size_t per_chunk = shm_->chunk_bytes() / spans_.element_size();
  return {i * per_chunk, std::min((i + 1) * per_chunk, spans_.count())};
}

void ShmBroadcast::Stage(size_t i) {
  if (shm_->rank() != root_) return;
  size_t element = spans_.element_size();
  char* slot = Slot(root_, i);
  spans_.ForEach(Chunk(i), [&](const char* in, char*, size_t first, size_t n) {
    Write(i, slot + first * element, in, n * element);
  });
}

bool ShmBroadcast::Combine(size_t i) {
  size_t element = spans_.element_size();
  const char* slot = Slot(root_, i);
  spans_.ForEach(Chunk(i), [&](const char* in, char* out, size_t first, size_t n) {
    if (shm_->rank() != root_) {
      CopyBytes(out, slot + first * element, n * element, large_);
      CountRead(n * element);
    } else if (out != in) {
      CopyBytes(out, in, n * element, large_);
    }
  });
  return true;
}

// Allgather: every rank stages its own part, chunk by chunk, and copies out all parts.

ShmAllgather::ShmAllgather(ChannelResources* resources, const Request* request)
    : Pipeline(resources, request, ChunksOf(LargestPart(*request), resources->shm->chunk_bytes()),
               true),
      outputs_(request->PartOutputs(topo_.rank, topo_.size)),
      large_(request->moved_bytes() >= kPastCachesBytes) {}

void ShmAllgather::Stage(size_t i) {
  size_t bytes = request_->part_bytes[topo_.rank], begin = i * shm_->chunk_bytes();
  if (begin >= bytes) return;
  Write(i, Slot(shm_->rank(), i), static_cast<const char*>(request_->tensors[0].in) + begin,
        std::min(shm_->chunk_bytes(), bytes - begin));
}

bool ShmAllgather::Combine(size_t i) {
  const size_t begin = i * shm_->chunk_bytes();
  for (int r = 0; r < topo_.size; ++r) {
    size_t bytes = request_->part_bytes[r];
    if (begin >= bytes) continue;
    size_t part = std::min(shm_->chunk_bytes(), bytes - begin);
    CopyBytes(outputs_[r] + begin, Slot(LocalRank(topo_, r), i), part, large_);
    if (r != topo_.rank) CountRead(part);
  }
  return true;
}

}  // namespace smddp
