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
  std::vector<size_t> send_offsets_, recv_offsets_;
};

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
  ReducePlan plan_;
  ReduceFn reduce_;
};

// Between nodes: an allreduce into scratch memory, of which each rank keeps its own rows.
class CrossNodeReduceScatter : public Collective {
 public:
  CrossNodeReduceScatter(ChannelResources* resources, const Request* request);

  Progress Advance() override;
  const Status& status() const override { return allreduce_->status(); }
  double met_at() const override { return allreduce_->met_at(); }
  std::vector<int> Missing() const override { return allreduce_->Missing(); }
  bool MayWaitForOtherNodes() const override { return allreduce_->MayWaitForOtherNodes(); }

 private:
  const Request* request_;
  const Topology& topo_;
  std::vector<char> scratch_;
  Request whole_;
  std::unique_ptr<HierarchicalAllreduce> allreduce_;
};

}  // namespace smddp
