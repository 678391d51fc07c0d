// Collectives in which every rank sends different data to every other: alltoall, reducescatter.
//
// Inside a node a rank's slot is divided into one stripe per peer, so all pairs move at once. Both
// are one-hop: each rank computes or copies its own result.
#pragma once

#include <memory>
#include <vector>

#include "collective/host/allreduce.h"
#include "collective/pipeline.h"

namespace smddp {

// The stripes of a slot.
class PeerStripes {
 public:
  PeerStripes(const ShmGroup& shm, size_t element_size);
  // Bytes in a stripe, a multiple of the element size.
  size_t bytes() const { return bytes_; }
  // Offset in `source`'s slot of the bytes for `target`, which must be a different rank.
  size_t Offset(int source, int target) const {
    return static_cast<size_t>(target < source ? target : target - 1) * stride_;
  }
  // Chunks that the largest part takes; at least one, because its header carries the signature.
  size_t Chunks(size_t largest) const;

 private:
  size_t stride_, bytes_;
};

class ShmAlltoall : public Pipeline {
 public:
  ShmAlltoall(ChannelResources* resources, const Request* request);

 protected:
  void Stage(size_t i) override;
  bool Combine(size_t i) override;

 private:
  size_t Bytes(int source, int target) const;
  PeerStripes stripes_;
  std::vector<const char*> inputs_;  // by target
  std::vector<char*> outputs_;       // by source
};

// The part of every tensor that `owner` receives: `in` points into this rank's tensors, `out` is
// set only if this rank is the owner.
SpanList PartOfOwner(const Request& request, const Topology& topo, int owner);

class ShmReduceScatter : public Pipeline {
 public:
  ShmReduceScatter(ChannelResources* resources, const Request* request);

 protected:
  void Stage(size_t i) override;
  bool Combine(size_t i) override;

 private:
  Range Chunk(size_t i, const SpanList& part) const;
  PeerStripes stripes_;
  std::vector<SpanList> parts_;  // by rank: the rows that it will receive, of all tensors
  ReduceSpec plan_;
  ReduceFn reduce_;
};

}  // namespace smddp
