// Chunk by chunk, the root stages its bytes. Each owner of its node sends a share of them to the
// owners of the same number on the other nodes (MPI's broadcast), which leave it in their slots.
// The root's neighbours read what the root has staged, all others read the owners' slots.
#include "collective/host/hierarchical_broadcast.h"

#include <algorithm>
#include <cstring>

#include "core/ranges.h"
#include "kernels/cpu/copy.h"

namespace smddp {
namespace {

constexpr size_t kLine = 64;

size_t Chunks(const ChannelResources& resources, const Request& request) {
  size_t per_chunk = resources.shm->chunk_bytes() / Info(request.dtype).size;
  return std::max<size_t>(1, (request.count() + per_chunk - 1) / per_chunk);
}

}  // namespace

HierarchicalBroadcast::HierarchicalBroadcast(ChannelResources* resources, const Request* request)
    : Pipeline(resources, request, Chunks(*resources, *request), false),
      spans_(request->Spans()),
      element_(Info(request->dtype).size),
      chunk_elements_(resources->shm->chunk_bytes() / element_),
      large_(request->moved_bytes() >= kPastCachesBytes),
      root_(topo_.RankOf(request->root)) {
  for (int node = 0; node < topo_.num_nodes; ++node) {
    const auto& ranks = topo_.nodes[node];
    auto at = std::find(ranks.begin(), ranks.end(), root_);
    if (at == ranks.end()) continue;
    root_node_ = node;
    root_local_ = static_cast<int>(at - ranks.begin());
  }
  if (shm_->rank() >= topo_.owners) return;
  exchanged_chunks_ = num_chunks();
  if (Share(num_chunks() - 1, shm_->rank()).size() == 0) --exchanged_chunks_;
}

Range HierarchicalBroadcast::Chunk(size_t i) const {
  size_t begin = i * chunk_elements_;
  return {begin, std::min(begin + chunk_elements_, spans_.count())};
}

Range HierarchicalBroadcast::Share(size_t i, int owner) const {
  Range chunk = Chunk(i);
  Range part = PartOf(chunk.size(), topo_.owners, owner, kLine / element_);
  return {chunk.begin + part.begin, chunk.begin + part.end};
}

void HierarchicalBroadcast::Stage(size_t i) {
  if (topo_.rank != root_ || shm_->size() == 1) return;
  char* slot = Slot(shm_->rank(), i);
  spans_.ForEach(Chunk(i), [&](const char* in, char*, size_t first, size_t n) {
    Write(i, slot + first * element_, in, n * element_);
  });
}

bool HierarchicalBroadcast::Combine(size_t i) {
  if (shm_->rank() >= topo_.owners) return true;
  size_t wanted = std::min(i + 1, exchanged_chunks_);
  while (status().ok() && finished_ < wanted && (StartNext() || FinishOldest())) NoteProgress();
  if (!status().ok() || finished_ < wanted) return false;
  StoreOwn(i);
  return true;
}

// Returns false if it cannot start yet, or if all have.
bool HierarchicalBroadcast::StartNext() {
  size_t i = started_;
  bool room = i < exchanged_chunks_ && i - finished_ < kSlots;
  if (!room || !StagedByAll(i)) return false;
  PeerGroup* peers = resources_->share_peers.get();
  if (memory_ == nullptr) {  // the first chunk has the largest share
    size_t bytes = Share(0, shm_->rank()).size() * element_;
    region_bytes_ = (bytes + kLine - 1) / kLine * kLine;
    memory_ = peers->Memory(region_bytes_ * std::min<size_t>(kSlots, exchanged_chunks_));
  }
  Range share = Share(i, shm_->rank());
  if (topo_.rank == root_) {
    spans_.ForEach(share, [&](const char* in, char*, size_t first, size_t n) {
      std::memcpy(Region(i) + first * element_, in, n * element_);
    });
  } else if (at_root_node()) {
    const char* from = Slot(root_local_, i) + (share.begin - Chunk(i).begin) * element_;
    std::memcpy(Region(i), from, share.size() * element_);
  }
  Status status = peers->StartBroadcast(Region(i), share.size() * element_, root_node_);
  if (!status.ok()) Fail(status);
  ++started_;
  return true;
}

// Returns false if it is still under way, or if there is none.
bool HierarchicalBroadcast::FinishOldest() {
  size_t i = finished_;
  if (i == started_ || !ExchangeHasEnded()) return false;
  if (!at_root_node() && shm_->size() > 1) {
    Write(i, Slot(shm_->rank(), i), Region(i), Share(i, shm_->rank()).size() * element_);
  }
  ++finished_;
  return true;
}

void HierarchicalBroadcast::Unpack(size_t i, int owner) {
  // Only owners know before that the nodes agree, and tensors may be modified.
  if (owner == 0 && shm_->rank() >= topo_.owners) StoreOwn(i);
  if (at_root_node()) {
    if (owner == root_local_) Store(Chunk(i), Slot(owner, i));
  } else if (owner < topo_.owners) {
    Store(Share(i, owner), Slot(owner, i));
  }
}

// What is not read from a slot: the root's bytes, and what this owner has received.
void HierarchicalBroadcast::StoreOwn(size_t i) {
  if (topo_.rank == root_) {
    spans_.ForEach(Chunk(i), [&](const char* in, char* out, size_t, size_t n) {
      if (out != in) CopyBytes(out, in, n * element_, large_);
    });
  } else if (!at_root_node() && shm_->rank() < topo_.owners && i < exchanged_chunks_) {
    Store(Share(i, shm_->rank()), Region(i));
  }
}

void HierarchicalBroadcast::Store(Range range, const char* from) {
  spans_.ForEach(range, [&](const char*, char* out, size_t first, size_t n) {
    CopyBytes(out, from + first * element_, n * element_, large_);
    CountRead(n * element_);
  });
}

}  // namespace smddp
