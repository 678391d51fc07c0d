// The allreduce algorithms. Each file opens with its idea; selector.cc says when each is used.
#pragma once

#include <memory>

#include "collective/pipeline.h"
#include "kernels/cpu/reduce.h"

namespace smddp {

// How the request's operation is computed: the kernel's combine, the scale of the result and, for
// integers, the exact divisor of an average.
struct ReducePlan {
  Combine combine = Combine::kSum;
  double scale = 1.0;
  int64_t divisor = 1;
  ReducePlan(const Request& request, int world_size);
};

// oneshot: every rank stages its whole payload, then reduces everything itself.
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

// shm: reduce-scatter and allgather in one node, chunk by chunk.
class ShmAllreduce : public Pipeline {
 public:
  ShmAllreduce(ChannelResources* resources, const Request* request);

 protected:
  void Stage(size_t i) override;
  bool Combine(size_t i) override;
  void Unpack(size_t i) override;

  // The logical range of owner j's share in chunk i, in elements.
  Range Share(size_t i, int owner) const;
  size_t ChunkBegin(size_t i) const { return i * chunk_elements_; }
  // Reduces this node's inputs of the own share; out(first, tensor_out) says where pieces go.
  template <typename Out>
  void ReduceOwnShare(size_t i, ReduceFn reduce, const ReduceArgs& base, Out&& out);

  SpanList spans_;
  ReducePlan plan_;
  size_t element_;
  size_t chunk_elements_;
};

// hierarchical: shm within the node, an exchange of shares between nodes in the combine phase.
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
  size_t accum_;       // bytes of an element that travels to be reduced
  Step step_ = Step::kReduceInNode;
  // Regions of the owners' group's memory, of `part` elements for each node.
  size_t part_ = 0;
  char *partial_ = nullptr, *received_ = nullptr, *own_ = nullptr, *gathered_ = nullptr;
};

}  // namespace smddp
