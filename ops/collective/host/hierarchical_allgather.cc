// Chunk by chunk, each rank stages a piece of its part in its slot. The owners of a node divide its
// ranks: owner j carries those whose local rank is j, j + owners, and so on. It exchanges their
// pieces with the owners j of the other nodes (MPI's allgather), and leaves what came from there in
// its slot, behind its own piece. Then each rank copies all pieces into its tensor: those of its
// node from where they were staged, the others from the owners' slots. With B bytes of results on m
// nodes, a node sends (m - 1) / m of B where nodes are equal.
#include "collective/host/hierarchical_allgather.h"

#include <algorithm>
#include <cstring>

#include "core/ranges.h"
#include "kernels/cpu/copy.h"

namespace smddp {
namespace {

static_assert(kSlots <= PeerGroup::kDepth);
constexpr size_t kLine = 64;

// The most ranks of other nodes that one owner carries.
size_t MostCarried(const Topology& topo) {
  size_t most = 0;
  for (int owner = 0; owner < topo.owners; ++owner) {
    std::vector<size_t> carried;
    size_t all = 0;
    for (const auto& node : topo.nodes) {
      carried.push_back((node.size() - owner + topo.owners - 1) / topo.owners);
      all += carried.back();
    }
    for (size_t own : carried) most = std::max(most, all - own);
  }
  return most;
}

// A slot has room for the own piece and for those of other nodes.
size_t PieceBytes(const ChannelResources& resources) {
  size_t bytes = resources.shm->chunk_bytes() / (1 + MostCarried(*resources.topology));
  return bytes < kLine ? bytes : bytes / kLine * kLine;
}

size_t Chunks(const ChannelResources& resources, const Request& request) {
  size_t largest = 1, each = PieceBytes(resources);
  for (size_t bytes : request.part_bytes) largest = std::max(largest, bytes);
  return (largest + each - 1) / each;
}

}  // namespace

HierarchicalAllgather::HierarchicalAllgather(ChannelResources* resources, const Request* request)
    : Pipeline(resources, request, Chunks(*resources, *request), false),
      large_(request->moved_bytes() >= kPastCachesBytes),
      each_(PieceBytes(*resources)),
      outputs_(request->PartOutputs(topo_.rank, topo_.size)) {}

Range HierarchicalAllgather::Piece(size_t i, int r) const {
  size_t bytes = request_->part_bytes[r];
  return {std::min(i * each_, bytes), std::min((i + 1) * each_, bytes)};
}

std::vector<HierarchicalAllgather::Place> HierarchicalAllgather::Layout(
    size_t i, int owner, std::vector<size_t>* bytes, std::vector<size_t>* offsets) const {
  std::vector<Place> places(topo_.size);
  size_t offset = 0;
  for (const auto& node : topo_.nodes) {
    offsets->push_back(offset);
    for (size_t local = owner; local < node.size(); local += topo_.owners) {
      places[node[local]] = {offset, Piece(i, node[local]).size()};
      offset += places[node[local]].bytes;
    }
    bytes->push_back(offset - offsets->back());
  }
  return places;
}

void HierarchicalAllgather::Stage(size_t i) {
  if (shm_->size() == 1) return;
  size_t bytes = Piece(i, topo_.rank).size();
  if (bytes > 0) Write(i, Slot(shm_->rank(), i), Staged(i, shm_->rank()), bytes);
}

bool HierarchicalAllgather::Combine(size_t i) {
  if (shm_->rank() >= topo_.owners) return true;
  while (status().ok() && finished_ <= i && (StartNext() || FinishOldest())) NoteProgress();
  if (!status().ok() || finished_ <= i) return false;
  CopyPiece(i, topo_.rank, Staged(i, shm_->rank()));
  CopyCarried(i, shm_->rank());
  return true;
}

const char* HierarchicalAllgather::Staged(size_t i, int local) const {
  if (local != shm_->rank()) return Slot(local, i);
  return static_cast<const char*>(request_->tensors[0].in) + Piece(i, topo_.rank).begin;
}

// Returns false if it cannot start yet, or if all have.
bool HierarchicalAllgather::StartNext() {
  size_t i = started_;
  bool room = i < num_chunks() && i - finished_ < kSlots;
  if (!room || !StagedByAll(i)) return false;
  PeerGroup* peers = resources_->share_peers.get();
  if (memory_ == nullptr) {
    size_t carried = 0;
    for (const auto& node : topo_.nodes) {
      for (size_t l = shm_->rank(); l < node.size(); l += topo_.owners) ++carried;
    }
    region_bytes_ = (carried * each_ + kLine - 1) / kLine * kLine;
    memory_ = peers->Memory(region_bytes_ * std::min<size_t>(kSlots, num_chunks()));
  }
  std::vector<size_t> bytes, offsets;
  std::vector<Place> places = Layout(i, shm_->rank(), &bytes, &offsets);
  const auto& node = topo_.nodes[topo_.node];
  for (int local = shm_->rank(); local < shm_->size(); local += topo_.owners) {
    Place place = places[node[local]];
    if (place.bytes > 0) std::memcpy(Region(i) + place.offset, Staged(i, local), place.bytes);
  }
  Status status =
      peers->StartAllgatherV(Region(i) + offsets[topo_.node], Region(i), bytes, offsets);
  if (!status.ok()) Fail(status);
  ++started_;
  return true;
}

// Returns false if it is still under way, or if there is none.
bool HierarchicalAllgather::FinishOldest() {
  size_t i = finished_;
  if (i == started_ || !ExchangeHasEnded()) return false;
  if (shm_->size() > 1) {
    std::vector<size_t> bytes, offsets;
    Layout(i, shm_->rank(), &bytes, &offsets);
    char* to = Slot(shm_->rank(), i) + each_;
    for (int node = 0; node < topo_.num_nodes; ++node) {
      if (node == topo_.node || bytes[node] == 0) continue;
      Write(i, to, Region(i) + offsets[node], bytes[node]);
      to += bytes[node];
    }
  }
  ++finished_;
  return true;
}

void HierarchicalAllgather::Unpack(size_t i, int owner) {
  // Only owners know before that the nodes agree, and tensors may be modified.
  bool first = owner == 0 && shm_->rank() >= topo_.owners;
  if (first) CopyPiece(i, topo_.rank, Staged(i, shm_->rank()));
  CopyPiece(i, topo_.nodes[topo_.node][owner], Staged(i, owner));
  if (owner < topo_.owners) CopyCarried(i, owner);
}

void HierarchicalAllgather::CopyPiece(size_t i, int r, const char* from) {
  Range piece = Piece(i, r);
  if (piece.size() == 0) return;
  char* to = outputs_[r] + piece.begin;
  if (to != from) CopyBytes(to, from, piece.size(), large_);
  if (r != topo_.rank) CountRead(piece.size());
}

// The pieces of other nodes that the owner exchanged: from the group's memory if that is this rank,
// and else from its slot, where the own node's pieces are left out.
void HierarchicalAllgather::CopyCarried(size_t i, int owner) {
  std::vector<size_t> bytes, offsets;
  std::vector<Place> places = Layout(i, owner, &bytes, &offsets);
  size_t own_begin = offsets[topo_.node], own_bytes = bytes[topo_.node];
  for (int node = 0; node < topo_.num_nodes; ++node) {
    if (node == topo_.node) continue;
    for (size_t l = owner; l < topo_.nodes[node].size(); l += topo_.owners) {
      int r = topo_.nodes[node][l];
      size_t skipped = places[r].offset > own_begin ? own_bytes : 0;
      const char* from = owner == shm_->rank()
                             ? Region(i) + places[r].offset
                             : Slot(owner, i) + each_ + places[r].offset - skipped;
      CopyPiece(i, r, from);
    }
  }
}

}  // namespace smddp
