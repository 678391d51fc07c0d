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
      stripes_(*resources->shm, 1) {
  size_t send = 0, recv = 0;
  for (int p = 0; p < topo_.size; ++p) {
    send_offsets_.push_back(send);
    recv_offsets_.push_back(recv);
    send += Bytes(topo_.rank, p);
    recv += Bytes(p, topo_.rank);
  }
}

// Ranks of the set, which on one node are the local ranks.
size_t ShmAlltoall::Bytes(int source, int target) const {
  return request_->part_bytes[static_cast<size_t>(source) * topo_.size + target];
}

void ShmAlltoall::Stage(size_t i) {
  const char* in = static_cast<const char*>(request_->tensors[0].in);
  size_t begin = i * stripes_.bytes();
  int self = topo_.rank;
  for (int p = 0; p < topo_.size; ++p) {
    size_t bytes = Bytes(self, p);
    if (p == self || begin >= bytes) continue;
    Write(i, Slot(self, i) + stripes_.Offset(self, p), in + send_offsets_[p] + begin,
          std::min(stripes_.bytes(), bytes - begin));
  }
}

bool ShmAlltoall::Combine(size_t i) {
  const char* in = static_cast<const char*>(request_->tensors[0].in);
  char* out = static_cast<char*>(request_->tensors[0].out);
  size_t begin = i * stripes_.bytes();
  int self = topo_.rank;
  for (int p = 0; p < topo_.size; ++p) {
    size_t bytes = Bytes(p, self);
    if (begin >= bytes) continue;
    const char* from =
        p == self ? in + send_offsets_[self] + begin : Slot(p, i) + stripes_.Offset(p, self);
    size_t part = std::min(stripes_.bytes(), bytes - begin);
    std::memcpy(out + recv_offsets_[p] + begin, from, part);
    if (p != self) CountRead(part);
  }
  return true;
}

}  // namespace smddp
