// Broadcast and alltoall of a job on several nodes: the ranks compare signatures as
// always, then the payload travels through the group's memory in pieces of
// ChannelResources::piece_bytes, several in flight.
//
// MPI never accesses a tensor, so a request that outlives a failure cannot corrupt one, and
// payloads may be of any size. The extra copies hit the cache.
#pragma once

#include <cstddef>
#include <vector>

#include "collective/pipeline.h"

namespace smddp {

class CrossNodeMove : public Pipeline {
 public:
  CrossNodeMove(ChannelResources* resources, const Request* request, size_t slot_bytes);

 protected:
  void Stage(size_t) override {}
  bool Combine(size_t) override { return true; }
  bool Conclude(bool* moved) override;

  // Copies this rank's contribution to the next piece into `slot` and starts the exchange; false if
  // no piece is left.
  virtual bool StartNext(char* slot, Status* status) = 0;
  // The oldest piece has arrived in `slot`.
  virtual void FinishOldest(const char* slot) = 0;

  bool large_;  // copies into the results bypass the caches

 private:
  static constexpr size_t kInFlight = 4;  // pieces
  static_assert(kInFlight <= PeerGroup::kDepth);
  char* SlotOf(size_t piece) const { return slots_ + piece % kInFlight * slot_bytes_; }
  size_t slot_bytes_;
  char* slots_ = nullptr;
  bool all_started_ = false;
  size_t started_ = 0, finished_ = 0;
};

class CrossNodeBroadcast : public CrossNodeMove {
 public:
  CrossNodeBroadcast(ChannelResources* resources, const Request* request);

 protected:
  bool StartNext(char* slot, Status* status) override;
  void FinishOldest(const char* slot) override;

 private:
  Range Take(size_t* at) const;
  SpanList spans_;
  size_t per_piece_;                // elements
  size_t sent_ = 0, received_ = 0;  // elements
  int root_;                        // rank of the set
};

class CrossNodeAlltoall : public CrossNodeMove {
 public:
  CrossNodeAlltoall(ChannelResources* resources, const Request* request);

 protected:
  bool StartNext(char* slot, Status* status) override;
  void FinishOldest(const char* slot) override;

 private:
  size_t Bytes(int source, int target) const;
  size_t InPiece(int source, int target, size_t piece) const;
  void CopyOwnPart() const;
  size_t per_pair_, pieces_;  // bytes per pair in a piece, and the number of pieces
  std::vector<size_t> send_offsets_, recv_offsets_;
  size_t next_ = 0, oldest_ = 0;
};

}  // namespace smddp
