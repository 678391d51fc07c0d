// Alltoall of a job on several nodes: the ranks compare signatures as always, then the payload
// travels through the group's memory in pieces of ChannelResources::piece_bytes, several in flight.
//
// MPI never accesses a tensor, so a request that outlives a failure cannot corrupt one, and
// payloads may be of any size. The extra copies hit the cache.
#pragma once

#include <cstddef>
#include <vector>

#include "collective/pipeline.h"

namespace smddp {

class CrossNodeAlltoall : public Pipeline {
 public:
  CrossNodeAlltoall(ChannelResources* resources, const Request* request);

 protected:
  void Stage(size_t) override {}
  bool Combine(size_t) override { return true; }
  bool Conclude(bool* moved) override;

 private:
  static constexpr size_t kInFlight = 4;  // pieces
  static_assert(kInFlight <= PeerGroup::kDepth);
  char* SlotOf(size_t piece) const { return slots_ + piece % kInFlight * slot_bytes_; }
  // Copies this rank's contribution to the next piece into `slot` and starts the exchange.
  Status StartNext(char* slot);
  // The oldest piece has arrived in `slot`.
  void FinishOldest(const char* slot);
  size_t Bytes(int source, int target) const;
  size_t InPiece(int source, int target, size_t piece) const;
  void CopyOwnPart() const;

  bool large_;  // copies into the results bypass the caches
  size_t slot_bytes_;
  char* slots_ = nullptr;
  size_t per_pair_, pieces_;  // bytes per pair in a piece, and the number of pieces
  std::vector<size_t> send_offsets_, recv_offsets_;
  size_t started_ = 0, finished_ = 0;  // pieces
};

}  // namespace smddp
