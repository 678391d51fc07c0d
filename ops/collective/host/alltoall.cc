// Alltoall inside a node: chunk by chunk, each rank writes every peer's bytes into that peer's
// stripe of its slot, and copies its own stripe out of every peer's slot.
#include <algorithm>
#include <cstring>

#include "collective/host/exchange.h"

namespace smddp {

PeerStripes::PeerStripes(const ShmGroup& shm, size_t element_size) {
  size_t peers = static_cast<size_t>(std::max(1, shm.size() - 1));
  // With many ranks and small chunks a stripe may be less than a cache line; it is then aligned to
  // the largest element.
  constexpr size_t kLine = 64, kElement = 8;
  stride_ = shm.chunk_bytes() / peers;
  stride_ -= stride_ % (stride_ < kLine ? kElement : kLine);
  bytes_ = stride_ / element_size * element_size;
}

size_t PeerStripes::Chunks(size_t largest) const {
  return largest == 0 ? 1 : (largest + bytes_ - 1) / bytes_;
}

namespace {

size_t Largest(const Request& request) {
  const auto& parts = request.part_bytes;
  return parts.empty() ? 0 : *std::max_element(parts.begin(), parts.end());
}

}  // namespace

ShmAlltoall::ShmAlltoall(ChannelResources* resources, const Request* request)
    : Pipeline(resources, request, PeerStripes(*resources->shm, 1).Chunks(Largest(*request)), true),
      stripes_(*resources->shm, 1),
      inputs_(request->PartInputs(topo_.rank, topo_.size)),
      outputs_(request->PartOutputs(topo_.rank, topo_.size)) {}

// Ranks of the set, which on one node are the local ranks.
size_t ShmAlltoall::Bytes(int source, int target) const {
  return request_->PartBytes(source, target, topo_.size);
}

void ShmAlltoall::Stage(size_t i) {
  size_t begin = i * stripes_.bytes();
  int self = topo_.rank;
  for (int p = 0; p < topo_.size; ++p) {
    size_t bytes = Bytes(self, p);
    if (p == self || begin >= bytes) continue;
    Write(i, Slot(self, i) + stripes_.Offset(self, p), inputs_[p] + begin,
          std::min(stripes_.bytes(), bytes - begin));
  }
}

bool ShmAlltoall::Combine(size_t i) {
  size_t begin = i * stripes_.bytes();
  int self = topo_.rank;
  for (int p = 0; p < topo_.size; ++p) {
    size_t bytes = Bytes(p, self);
    if (begin >= bytes) continue;
    const char* from = p == self ? inputs_[p] + begin : Slot(p, i) + stripes_.Offset(p, self);
    size_t part = std::min(stripes_.bytes(), bytes - begin);
    if (outputs_[p] + begin != from) std::memcpy(outputs_[p] + begin, from, part);
    if (p != self) CountRead(part);
  }
  return true;
}

}  // namespace smddp
