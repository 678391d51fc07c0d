// Chunk by chunk, each rank stages in its slot what it has for the other ranks of its node. The
// owners of a node divide its ranks as in an allgather: owner j carries what those have for other
// nodes whose local rank is j, j + owners, and so on. A rank that is no owner stages that too, an
// owner's own bytes go straight into its messages. The owners j of all nodes exchange them (MPI's
// alltoall), one message per pair of nodes, and leave what came for their node in their slots,
// behind their own pieces. Then each rank copies its pieces from the slots of its peers.
//
//   slot of an owner:      [pieces for its node] [pieces from other nodes, for its node]
//   slot of another rank:  [pieces for its node] [pieces for other nodes]
//   a message:             by source, then by target, each in the order of ranks
//
// With m nodes of k ranks, a node sends k (m - 1) messages for a chunk where each pair of ranks
// would send k * k (m - 1), of the same bytes in all. The price is a second copy of the received
// bytes. Messages that fit beside the header travel there: such an alltoall is one exchange.
//
// A chunk takes equally much of every part that has bytes left. Where a slot has no room for some
// bytes of each, the parts form groups, and the chunks take the groups in turns.
#include "collective/host/hierarchical_alltoall.h"

#include <algorithm>
#include <cstring>

#include "core/ranges.h"
#include "kernels/cpu/copy.h"

namespace smddp {
namespace {

static_assert(kSlots <= PeerGroup::kDepth);
constexpr size_t kLine = 64;
// A part moves at least so many bytes in a chunk; with less the chunks would be too many.
constexpr size_t kLeastPiece = 8;

size_t PartBytes(const Request& request, const Topology& topo, int source, int target) {
  return request.PartBytes(source, target, topo.size);
}

// The most parts of one group whose pieces lie in one slot. The part from s to t is in group
// (s + t) % groups.
size_t MostParts(const Request& request, const Topology& topo, size_t groups) {
  std::vector<int> node_of(topo.size), local_of(topo.size);
  for (int node = 0; node < topo.num_nodes; ++node) {
    for (size_t local = 0; local < topo.nodes[node].size(); ++local) {
      node_of[topo.nodes[node][local]] = node;
      local_of[topo.nodes[node][local]] = static_cast<int>(local);
    }
  }
  std::vector<size_t> parts(topo.size * groups);  // by rank and group
  for (int s = 0; s < topo.size; ++s) {
    for (int t = 0; t < topo.size; ++t) {
      if (s == t || PartBytes(request, topo, s, t) == 0) continue;
      bool near = node_of[s] == node_of[t];
      size_t group = static_cast<size_t>(s + t) % groups;
      auto count = [&](int rank) { ++parts[static_cast<size_t>(rank) * groups + group]; };
      if (near || local_of[s] >= topo.owners) count(s);
      if (!near) count(topo.nodes[node_of[t]][local_of[s] % topo.owners]);
    }
  }
  return std::max<size_t>(1, *std::max_element(parts.begin(), parts.end()));
}

// Bytes of a chunk. Where every node has a single rank, no bytes lie in slots.
size_t ChunkBytes(const ChannelResources& resources) {
  const Topology& topo = *resources.topology;
  return topo.num_nodes == topo.size ? resources.piece_bytes : resources.shm->chunk_bytes();
}

size_t GroupsOf(const ChannelResources& resources, const Request& request) {
  const Topology& topo = *resources.topology;
  size_t groups = 1, enough = 2 * static_cast<size_t>(topo.size);  // then each has a row at most
  while (groups < enough &&
         ChunkBytes(resources) / MostParts(request, topo, groups) < kLeastPiece) {
    groups *= 2;
  }
  return groups;
}

size_t EachBytes(const ChannelResources& resources, const Request& request, size_t groups) {
  size_t most = MostParts(request, *resources.topology, groups);
  return std::max<size_t>(1, ChunkBytes(resources) / most);
}

// The chunks until no part has bytes left, or no part from one node to another.
size_t Chunks(const Request& request, const Topology& topo, const PartCut& cut,
              bool between_nodes) {
  size_t chunks = 0;
  for (const auto& from : topo.nodes) {
    for (const auto& to : topo.nodes) {
      for (size_t i = 0; i < from.size() * to.size(); ++i) {
        int source = from[i / to.size()], target = to[i % to.size()];
        size_t bytes = PartBytes(request, topo, source, target);
        if (source == target || bytes == 0 || (between_nodes && &from == &to)) continue;
        size_t group = static_cast<size_t>(source + target) % cut.groups;
        chunks = std::max(chunks, group + (bytes - 1) / cut.each * cut.groups + 1);
      }
    }
  }
  return chunks;
}

}  // namespace

PartCut::PartCut(const ChannelResources& resources, const Request& request)
    : groups(GroupsOf(resources, request)), each(EachBytes(resources, request, groups)) {}

HierarchicalAlltoall::HierarchicalAlltoall(ChannelResources* resources, const Request* request)
    : HierarchicalAlltoall(resources, request, PartCut(*resources, *request)) {}

// One chunk at least, because its header carries the signature.
HierarchicalAlltoall::HierarchicalAlltoall(ChannelResources* resources, const Request* request,
                                           const PartCut& cut)
    : Pipeline(resources, request,
               std::max<size_t>(1, Chunks(*request, *resources->topology, cut, false)), false),
      node_(topo_.nodes[topo_.node]),
      large_(request->moved_bytes() >= kPastCachesBytes),
      cut_(cut),
      inputs_(request->PartInputs(topo_.rank, topo_.size)),
      outputs_(request->PartOutputs(topo_.rank, topo_.size)) {
  if (shm_->rank() >= topo_.owners) return;
  exchanged_chunks_ = Chunks(*request, topo_, cut_, true);
  with_header_ = exchanged_chunks_ == 1 && FitsHeader();
}

Range HierarchicalAlltoall::Piece(size_t i, int source, int target) const {
  if (static_cast<size_t>(source + target) % cut_.groups != i % cut_.groups) return {0, 0};
  size_t bytes = PartBytes(*request_, topo_, source, target);
  size_t before = i / cut_.groups * cut_.each;
  return {std::min(before, bytes), std::min(before + cut_.each, bytes)};
}

size_t HierarchicalAlltoall::StagedOffset(size_t i, int source, int target) const {
  size_t offset = 0;
  for (int r : node_) {
    if (r == target) break;
    if (r != source) offset += Piece(i, source, r).size();
  }
  return offset;
}

size_t HierarchicalAlltoall::MessageBytes(size_t i, int from_node, int to_node, int owner) const {
  const auto& from = topo_.nodes[from_node];
  size_t bytes = 0;
  for (size_t local = owner; local < from.size() && from_node != to_node; local += topo_.owners) {
    for (int target : topo_.nodes[to_node]) bytes += Piece(i, from[local], target).size();
  }
  return bytes;
}

// Whether the messages of every node's owner of this number do. These must decide alike, the others
// need not.
bool HierarchicalAlltoall::FitsHeader() const {
  for (int from = 0; from < topo_.num_nodes; ++from) {
    size_t bytes = 0;
    for (int to = 0; to < topo_.num_nodes; ++to) bytes += MessageBytes(0, from, to, shm_->rank());
    if (bytes > HeaderExchange::PayloadBytes(topo_.num_nodes)) return false;
  }
  return true;
}

void HierarchicalAlltoall::Stage(size_t i) {
  if (shm_->size() == 1) return;
  char* slot = Slot(shm_->rank(), i);
  auto stage = [&](int target) {
    Range piece = Piece(i, topo_.rank, target);
    if (piece.size() > 0) Write(i, slot, inputs_[target] + piece.begin, piece.size());
    slot += piece.size();
  };
  for (int target : node_) {
    if (target != topo_.rank) stage(target);
  }
  for (int node = 0; node < topo_.num_nodes && shm_->rank() >= topo_.owners; ++node) {
    if (node == topo_.node) continue;
    for (int target : topo_.nodes[node]) stage(target);
  }
}

bool HierarchicalAlltoall::Combine(size_t i) {
  if (shm_->rank() >= topo_.owners) return true;
  if (i < exchanged_chunks_ && with_header_) ReceiveFromHeaders();
  size_t wanted = with_header_ ? 0 : std::min(i + 1, exchanged_chunks_);
  while (status().ok() && finished_ < wanted && (StartNext() || FinishOldest())) NoteProgress();
  if (!status().ok() || finished_ < wanted) return false;
  if (i == 0) StoreOwnPart();
  if (i < exchanged_chunks_) StoreReceived(i, shm_->rank(), Received(i));
  return true;
}

std::vector<size_t> HierarchicalAlltoall::PackMessages(size_t i, char* to) const {
  std::vector<const char*> staged(node_.size());  // the next piece for another node
  for (size_t local = 0; local < node_.size(); ++local) {
    staged[local] = Slot(static_cast<int>(local), i) + StagedOffset(i, node_[local], kAll);
  }
  std::vector<size_t> bytes(topo_.num_nodes);
  for (int node = 0; node < topo_.num_nodes; ++node) {
    if (node == topo_.node) continue;
    for (size_t local = shm_->rank(); local < node_.size(); local += topo_.owners) {
      for (int target : topo_.nodes[node]) {
        Range piece = Piece(i, node_[local], target);
        if (piece.size() == 0) continue;
        bool own = node_[local] == topo_.rank;
        const char* from = own ? inputs_[target] + piece.begin : staged[local];
        std::memcpy(to, from, piece.size());
        to += piece.size();
        staged[local] += piece.size();
        bytes[node] += piece.size();
      }
    }
  }
  return bytes;
}

// The first chunk of each group has its longest messages.
void HierarchicalAlltoall::ReserveMemory() {
  size_t sent = 0, received = 0;
  for (size_t i = 0; i < std::min(cut_.groups, exchanged_chunks_); ++i) {
    size_t to_others = 0, from_others = 0;
    for (int node = 0; node < topo_.num_nodes; ++node) {
      to_others += MessageBytes(i, topo_.node, node, shm_->rank());
      from_others += MessageBytes(i, node, topo_.node, shm_->rank());
    }
    sent = std::max(sent, to_others);
    received = std::max(received, from_others);
  }
  send_bytes_ = (sent + kLine - 1) / kLine * kLine;
  region_bytes_ = (send_bytes_ + received + kLine - 1) / kLine * kLine;
  memory_ =
      resources_->share_peers->Memory(region_bytes_ * std::min<size_t>(kSlots, exchanged_chunks_));
}

// Returns false if it cannot start yet, or if all have.
bool HierarchicalAlltoall::StartNext() {
  size_t i = started_;
  bool room = i < exchanged_chunks_ && i - finished_ < kSlots;
  if (!room || !StagedByAll(i)) return false;
  PeerGroup* peers = resources_->share_peers.get();
  if (memory_ == nullptr) ReserveMemory();
  std::vector<size_t> receive;
  for (int node = 0; node < topo_.num_nodes; ++node) {
    receive.push_back(MessageBytes(i, node, topo_.node, shm_->rank()));
  }
  std::vector<size_t> send = PackMessages(i, Region(i));
  Status status = peers->StartAlltoallV(Region(i), send, Region(i) + send_bytes_, receive);
  if (!status.ok()) Fail(status);
  ++started_;
  return true;
}

// Returns false if it is still under way, or if there is none.
bool HierarchicalAlltoall::FinishOldest() {
  if (finished_ == started_ || !ExchangeHasEnded()) return false;
  ShareReceived(finished_++);
  return true;
}

// The nodes that exchange bytes with this one in the oldest exchange.
bool HierarchicalAlltoall::AwaitsNode(int node) const {
  if (finished_ == started_) return false;
  return MessageBytes(finished_, node, topo_.node, shm_->rank()) > 0 ||
         MessageBytes(finished_, topo_.node, node, shm_->rank()) > 0;
}

void HierarchicalAlltoall::SendWithHeader(char* to) {
  if (with_header_) PackMessages(0, to);
}

// Each payload has the messages of a node to all others, of which one is for this node.
void HierarchicalAlltoall::ReceiveFromHeaders() {
  for (int from = 0; from < topo_.num_nodes; ++from) {
    const char* message = resources_->exchange.payload(from);
    for (int to = 0; to < topo_.node; ++to) message += MessageBytes(0, from, to, shm_->rank());
    size_t bytes = MessageBytes(0, from, topo_.node, shm_->rank());
    from_headers_.insert(from_headers_.end(), message, message + bytes);
  }
  ShareReceived(0);
}

void HierarchicalAlltoall::ShareReceived(size_t i) {
  if (shm_->size() == 1) return;
  size_t bytes = 0;
  for (int node = 0; node < topo_.num_nodes; ++node) {
    bytes += MessageBytes(i, node, topo_.node, shm_->rank());
  }
  if (bytes == 0) return;
  char* slot = Slot(shm_->rank(), i) + StagedOffset(i, topo_.rank, kAll);
  Write(i, slot, Received(i), bytes);
}

void HierarchicalAlltoall::Unpack(size_t i, int owner) {
  int source = node_[owner];
  // Only owners know before that the nodes agree, and tensors may be modified.
  if (i == 0 && owner == 0 && shm_->rank() >= topo_.owners) StoreOwnPart();
  const char* slot = Slot(owner, i);
  Store(source, Piece(i, source, topo_.rank), slot + StagedOffset(i, source, topo_.rank));
  if (owner < topo_.owners) StoreReceived(i, owner, slot + StagedOffset(i, source, kAll));
}

void HierarchicalAlltoall::StoreOwnPart() {
  const char* in = inputs_[topo_.rank];
  char* out = outputs_[topo_.rank];
  size_t bytes = PartBytes(*request_, topo_, topo_.rank, topo_.rank);
  if (bytes > 0 && out != in) CopyBytes(out, in, bytes, large_);
}

void HierarchicalAlltoall::StoreReceived(size_t i, int owner, const char* messages) {
  for (int node = 0; node < topo_.num_nodes; ++node) {
    const auto& from = topo_.nodes[node];
    for (size_t l = owner; l < from.size() && node != topo_.node; l += topo_.owners) {
      for (int target : node_) {
        Range piece = Piece(i, from[l], target);
        if (target == topo_.rank) Store(from[l], piece, messages);
        messages += piece.size();
      }
    }
  }
}

void HierarchicalAlltoall::Store(int source, Range piece, const char* from) {
  if (piece.size() == 0) return;
  CopyBytes(outputs_[source] + piece.begin, from, piece.size(), large_);
  CountRead(piece.size());
}

}  // namespace smddp
