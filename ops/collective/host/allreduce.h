// The allreduce algorithms. Each .cc file opens with a description of its algorithm; selector.cc
// says when each is used.
#pragma once

#include <memory>

#include "collective/pipeline.h"
#include "kernels/cpu/reduce.h"

namespace smddp {

// How a request's operation is computed: the kernel's combine, the scale of the result and, for
// integers, the exact divisor of an average.
struct ReducePlan {
  Combine combine = Combine::kSum;
  double scale = 1.0;
  int64_t divisor = 1;
  ReducePlan(const Request& request, int world_size);
};

// oneshot: every rank stages its whole payload, and every rank reduces all of it.
class OneshotAllreduce : public Pipeline {
 public:
  OneshotAllreduce(ChannelResources* resources, const Request* request);

 protected:
  void Stage(size_t i) override;
  bool Combine(size_t i) override;

 private:
  SpanList spans_;
  ReducePlan plan_;
  ReduceFn reduce_;
};

// shm: a reduce-scatter and an allgather within the node, chunk by chunk.
class ShmAllreduce : public Pipeline {
 public:
  ShmAllreduce(ChannelResources* resources, const Request* request);

 protected:
  void Stage(size_t i) override;
  bool Combine(size_t i) override;
  void Unpack(size_t i, int owner) override;

  // Owner j's share of chunk i: a logical range, in elements.
  Range Share(size_t i, int owner) const;
  size_t ChunkBegin(size_t i) const { return i * chunk_elements_; }
  // Reduces this node's inputs of the own share; out(first, tensor_out) returns where a piece is
  // written.
  template <typename Out>
  void ReduceOwnShare(size_t i, ReduceFn reduce, const ReduceArgs& base, Out&& out);

  SpanList spans_;
  ReducePlan plan_;
  size_t element_;
  size_t chunk_elements_;
};

// hierarchical: shm within the node; the combine phase exchanges shares between nodes.
class HierarchicalAllreduce : public ShmAllreduce {
 public:
  HierarchicalAllreduce(ChannelResources* resources, const Request* request);

 protected:
  bool Combine(size_t i) override;

 private:
  enum class Step { kReduceInNode, kScatter, kGather };
  void StartScatter(size_t i);
  void StartGather(size_t i);
  void StoreResult(size_t i);

  bool sums_in_node_;  // some node has several ranks
  size_t accum_;       // bytes of an element of a partial sum as sent between nodes
  Step step_ = Step::kReduceInNode;
  // Regions of the owners' group memory, each with `part_` elements for each node.
  size_t part_ = 0;
  char *partial_ = nullptr, *received_ = nullptr, *own_ = nullptr, *gathered_ = nullptr;
};

}  // namespace smddp
