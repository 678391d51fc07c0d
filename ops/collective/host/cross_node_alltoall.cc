// A piece takes equally much from every pair of ranks that has data left. In the slot, received
// bytes follow the sent ones. A rank's part for itself is copied directly.
#include "collective/host/cross_node_alltoall.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/copy.h"

namespace smddp {
namespace {

constexpr size_t kLine = 64;

// The largest number of peers with which a rank exchanges data in one direction; at least one.
size_t MostPeers(const Request& request, int size) {
  size_t most = 1;
  for (int r = 0; r < size; ++r) {
    size_t to = 0, from = 0;
    for (int p = 0; p < size; ++p) {
      to += p != r && request.part_bytes[r * size + p] > 0;
      from += p != r && request.part_bytes[p * size + r] > 0;
    }
    most = std::max({most, to, from});
  }
  return most;
}

size_t PairBytes(const ChannelResources& resources, const Request& request) {
  return std::max<size_t>(1, resources.piece_bytes / MostPeers(request, resources.topology->size));
}

// Upper limit of the bytes that a rank sends, or receives, in a piece.
size_t AlltoallBytes(const ChannelResources& resources, const Request& request) {
  size_t bytes = std::min(resources.piece_bytes, request.moved_bytes());
  return std::max(bytes, static_cast<size_t>(resources.topology->size));
}

size_t LargestPart(const Request& request, int size) {
  size_t largest = 0;
  for (int r = 0; r < size; ++r) {
    for (int p = 0; p < size; ++p) {
      if (p != r) largest = std::max(largest, request.part_bytes[r * size + p]);
    }
  }
  return largest;
}

}  // namespace

CrossNodeAlltoall::CrossNodeAlltoall(ChannelResources* resources, const Request* request)
    : Pipeline(resources, request, 1, false),
      large_(request->moved_bytes() >= kPastCachesBytes),
      slot_bytes_((2 * AlltoallBytes(*resources, *request) + kLine - 1) / kLine * kLine),
      per_pair_(PairBytes(*resources, *request)),
      pieces_((LargestPart(*request, topo_.size) + per_pair_ - 1) / per_pair_) {
  size_t send = 0, recv = 0;
  for (int p = 0; p < topo_.size; ++p) {
    send_offsets_.push_back(send);
    recv_offsets_.push_back(recv);
    send += Bytes(topo_.rank, p);
    recv += Bytes(p, topo_.rank);
  }
}

size_t CrossNodeAlltoall::Bytes(int source, int target) const {
  return request_->part_bytes[static_cast<size_t>(source) * topo_.size + target];
}

size_t CrossNodeAlltoall::InPiece(int source, int target, size_t piece) const {
  size_t bytes = source == target ? 0 : Bytes(source, target), begin = piece * per_pair_;
  return bytes <= begin ? 0 : std::min(per_pair_, bytes - begin);
}

void CrossNodeAlltoall::CopyOwnPart() const {
  const TensorArg& tensor = request_->tensors[0];
  size_t bytes = Bytes(topo_.rank, topo_.rank);
  const char* in = static_cast<const char*>(tensor.in) + send_offsets_[topo_.rank];
  char* out = static_cast<char*>(tensor.out) + recv_offsets_[topo_.rank];
  if (bytes > 0 && out != in) CopyBytes(out, in, bytes, large_);
}

bool CrossNodeAlltoall::Conclude(bool* moved) {
  PeerGroup* group = resources_->all_ranks.get();
  if (slots_ == nullptr) {
    slots_ = group->Memory(slot_bytes_ * kInFlight);
    CopyOwnPart();
  }
  while (finished_ < pieces_) {
    Status status;
    if (started_ < pieces_ && started_ - finished_ < kInFlight) {
      status = StartNext(SlotOf(started_));
      ++started_;
    } else {
      bool done = false;
      status = group->Test(&done);
      if (status.ok() && !done) return false;
      if (status.ok()) FinishOldest(SlotOf(finished_));
      ++finished_;
    }
    *moved = true;
    if (status.ok()) continue;
    Fail(status);
    return true;
  }
  return true;
}

Status CrossNodeAlltoall::StartNext(char* slot) {
  std::vector<size_t> send, recv;
  const char* in = static_cast<const char*>(request_->tensors[0].in);
  char* at = slot;
  for (int p = 0; p < topo_.size; ++p) {
    send.push_back(InPiece(topo_.rank, p, started_));
    recv.push_back(InPiece(p, topo_.rank, started_));
    if (send[p] == 0) continue;
    std::memcpy(at, in + send_offsets_[p] + started_ * per_pair_, send[p]);
    at += send[p];
  }
  return resources_->all_ranks->StartAlltoallV(slot, send, at, recv);
}

void CrossNodeAlltoall::FinishOldest(const char* slot) {
  char* out = static_cast<char*>(request_->tensors[0].out);
  for (int p = 0; p < topo_.size; ++p) slot += InPiece(topo_.rank, p, finished_);
  for (int p = 0; p < topo_.size; ++p) {
    size_t bytes = InPiece(p, topo_.rank, finished_);
    if (bytes > 0) CopyBytes(out + recv_offsets_[p] + finished_ * per_pair_, slot, bytes, large_);
    slot += bytes;
  }
}

}  // namespace smddp
