// The collectives in which every rank has something for every other one: alltoall, reducescatter.
//
// Inside a node a rank's slot is cut into one stripe for each peer, so all pairs move at once. Both
// are one-hop: what a rank gets is computed by itself.
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
  // Bytes a stripe holds, a multiple of the element.
  size_t bytes() const { return bytes_; }
  // Where in `source`'s slot the bytes for `target` lie; they are different ranks.
  size_t Offset(int source, int target) const {
    return static_cast<size_t>(target < source ? target : target - 1) * stride_;
  }
  // Chunks that the largest part takes; at least one, whose header is how ranks meet.
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

// Each tensor's rows are divided among the ranks, early ranks get the odd rows.
Range RowsOf(int64_t rows, int size, int rank);

class ShmReduceScatter : public Pipeline {
 public:
  ShmReduceScatter(ChannelResources* resources, const Request* request);

 protected:
  void Stage(size_t i) override;
  bool Combine(size_t i) override;

 private:
  Range Chunk(size_t i, const SpanList& part) const;
  PeerStripes stripes_;
  std::vector<SpanList> parts_;  // by rank: what it will own, of all tensors
  ReducePlan plan_;
  ReduceFn reduce_;
};

// Between nodes: an allreduce into scratch memory, of which each rank keeps its part.
class CrossNodeReduceScatter : public Collective {
 public:
  CrossNodeReduceScatter(ChannelResources* resources, const Request* request);

  Progress Advance() override;
  const Status& status() const override { return allreduce_->status(); }
  double met_at() const override { return allreduce_->met_at(); }
  std::vector<int> Missing() const override { return allreduce_->Missing(); }

 private:
  const Request* request_;
  const Topology& topo_;
  std::vector<char> scratch_;
  Request whole_;
  std::unique_ptr<HierarchicalAllreduce> allreduce_;
};

}  // namespace smddp
