// Reducescatter between nodes: the first half of the hierarchical allreduce.
#pragma once

#include <vector>

#include "collective/host/allreduce.h"
#include "collective/pipeline.h"

namespace smddp {

class HierarchicalReduceScatter : public Pipeline {
 public:
  HierarchicalReduceScatter(ChannelResources* resources, const Request* request);

 protected:
  void Stage(size_t i) override;
  bool Combine(size_t i) override;
  void Unpack(size_t i, int owner) override;

 private:
  // The owners' group memory of a chunk: partial sums for the own node, then for the others, then
  // those that have arrived from the others.
  struct Region {
    char *own, *sent, *received;
  };
  Region RegionOf(size_t i) const;
  int Carrier(int local) const { return local % topo_.owners; }
  // The elements of rank r's part that chunk i reduces.
  Range Piece(size_t i, int r) const;
  // Elements of chunk i that this owner carries for a node.
  size_t Carried(size_t i, int node) const;
  char* Stripe(size_t i, int local, int r) const { return Slot(local, i) + r * stripe_; }
  bool StartNext();
  bool FinishOldest();
  void ReduceInNode(size_t i, int r, char* out);
  void ReduceBetweenNodes(size_t i);

  std::vector<SpanList> parts_;  // by rank: the rows that it will receive, of all tensors
  ReduceSpec plan_;
  bool wide_;  // partial sums travel in the accumulator's type
  size_t element_, accum_;
  size_t stripe_;  // bytes of a slot for each rank
  size_t largest_carried_ = 0;
  char* memory_ = nullptr;
  size_t started_ = 0, finished_ = 0;
};

}  // namespace smddp
