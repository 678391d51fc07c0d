#include "collective/single_copy.h"

#include <unistd.h>

#include <vector>

#include "kernels/copy.h"
#include "transport/peer_memory.h"

namespace smddp {

// What a slot holds.
struct SingleCopyMove::Table {
  int64_t pid;
  uint64_t inputs[];  // addresses, one a tensor
};

std::string SingleCopyMove::Cannot(const Lane& lane, const Request& request) {
  if (lane.topology->num_nodes > 1) return "works inside one node only";
  if (!lane.reads_peers) return "the ranks cannot read each other's memory";
  bool fits = sizeof(Table) + sizeof(uint64_t) * request.tensors.size() <= lane.shm->chunk_bytes();
  return fits ? "" : "there are too many tensors";
}

SingleCopyMove::SingleCopyMove(Lane* lane, const Request* request)
    : Pipeline(lane, request, 1, true), large_(request->moved_bytes() >= kPastCachesBytes) {
  LendMemory();
}

void SingleCopyMove::Stage(size_t i) {
  Table* own = reinterpret_cast<Table*>(Slot(shm_->rank(), i));
  own->pid = ::getpid();
  for (size_t t = 0; t < request_->tensors.size(); ++t) {
    own->inputs[t] = reinterpret_cast<uintptr_t>(request_->tensors[t].in);
  }
}

bool SingleCopyMove::Combine(size_t i) {
  // Of one node, so the ranks of the set are the local ranks, in the same order.
  auto table = [&](int rank) -> const Table& { return *reinterpret_cast<Table*>(Slot(rank, i)); };
  Status read;
  if (request_->kind == Kind::kBroadcast) read = ReadBroadcast(table(topo_.RankOf(request_->root)));
  // Everybody starts with another peer.
  for (int step = 0; request_->gathers() && step < topo_.size && read.ok(); ++step) {
    int rank = (topo_.rank + step) % topo_.size;
    read = ReadPart(table(rank), rank);
  }
  // That a peer is gone is for the engine to tell, which knows how it ended.
  if (read.code() == Code::kRemote) return false;
  if (!read.ok()) {
    Fail({read.code(), read.message() + "; with SMDDP_SINGLE_COPY=0 ranks leave that be"});
  }
  return true;
}

Status SingleCopyMove::ReadBroadcast(const Table& root) {
  bool own = topo_.RankOf(request_->root) == topo_.rank;
  std::vector<PeerBytes> wanted;
  for (size_t t = 0; t < request_->tensors.size(); ++t) {
    const TensorArg& tensor = request_->tensors[t];
    size_t bytes = tensor.count() * Info(request_->dtype).size;
    if (bytes == 0 || (own && tensor.in == tensor.out)) continue;
    if (own) {
      CopyBytes(tensor.out, tensor.in, bytes, large_);
    } else {
      wanted.push_back({tensor.out, root.inputs[t], bytes});
    }
  }
  return ReadPeer(static_cast<int>(root.pid), wanted);
}

// The part that `rank` has for this rank: of allgather all it has, of alltoall one of its parts.
Status SingleCopyMove::ReadPart(const Table& source, int rank) {
  const auto& parts = request_->gather_bytes;
  bool alltoall = request_->kind == Kind::kAlltoall;
  auto part = [&](int from, int to) { return parts[alltoall ? from * topo_.size + to : from]; };
  size_t from = 0, to = 0, bytes = part(rank, topo_.rank);
  for (int p = 0; alltoall && p < topo_.rank; ++p) from += part(rank, p);
  for (int p = 0; p < rank; ++p) to += part(p, topo_.rank);
  const TensorArg& tensor = request_->tensors[0];
  char* out = static_cast<char*>(tensor.out) + to;
  if (bytes == 0) return {};
  if (rank != topo_.rank) {
    return ReadPeer(static_cast<int>(source.pid), {{out, source.inputs[0] + from, bytes}});
  }
  CopyBytes(out, static_cast<const char*>(tensor.in) + from, bytes, large_);
  return {};
}

}  // namespace smddp
