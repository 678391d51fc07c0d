// Broadcast, allgather and alltoall of a job on several nodes: the ranks compare signatures as
// always, then the payload travels in pieces of ChannelResources::piece_bytes, several at a time,
// through the memory of the ranks' group.
//
// MPI never sees a tensor, so nothing that it does after a failure can be seen in one, and no
// payload is too large for it. The copies in and out of a piece find it in the cache.
#pragma once

#include <cstddef>
#include <deque>
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

  // Copies what this rank brings to the next piece to `slot`, and starts the exchange; false: there
  // is no piece left.
  virtual bool StartNext(char* slot, Status* status) = 0;
  // The oldest piece has come to `slot`.
  virtual void FinishOldest(const char* slot) = 0;

  bool large_;  // copies to the results go past the caches

 private:
  char* SlotOf(size_t piece) const { return slots_ + piece % PeerGroup::kDepth * slot_bytes_; }
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

class CrossNodeAllgather : public CrossNodeMove {
 public:
  CrossNodeAllgather(ChannelResources* resources, const Request* request);

 protected:
  bool StartNext(char* slot, Status* status) override;
  void FinishOldest(const char* slot) override;

 private:
  using Parts = std::vector<size_t>;  // by rank
  Parts Cut() const;
  Parts out_offsets_, started_;  // of each rank's part
  std::deque<Parts> pieces_;     // under way
  Parts finished_;
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
  size_t per_pair_, pieces_;  // bytes in a piece, and how many of those
  std::vector<size_t> send_offsets_, recv_offsets_;
  size_t next_ = 0, oldest_ = 0;
};

}  // namespace smddp
