// The allreduce algorithms. Each .cc file opens with a description of its algorithm; selector.cc
// says when each is used.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "collective/pipeline.h"
#include "kernels/cpu/reduce.h"

namespace smddp {

// How a request's operation is computed: the kernel's combine, the scale of the result and, for
// integers, the exact divisor of an average.
struct ReduceSpec {
  Combine combine = Combine::kSum;
  double scale = 1.0;
  int64_t divisor = 1;
  // Whether a sum over some of the ranks needs the accumulator's type, so that the result is what
  // one node would compute.
  bool partials_are_wide;
  ReduceSpec(const Request& request, int world_size);
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
  ReduceSpec plan_;
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
  virtual Range Share(size_t i, int owner) const;
  size_t ChunkBegin(size_t i) const { return i * chunk_elements_; }
  // Reduces this node's inputs of the own share; out(first, tensor_out) returns where a piece is
  // written.
  template <typename Out>
  void ReduceOwnShare(size_t i, ReduceFn reduce, const ReduceArgs& base, Out&& out);

  SpanList spans_;
  ReduceSpec plan_;
  size_t element_;
  size_t chunk_elements_;
};

template <typename Out>
void ShmAllreduce::ReduceOwnShare(size_t i, ReduceFn reduce, const ReduceArgs& base, Out&& out) {
  Range share = Share(i, shm_->rank());
  size_t offset = (share.begin - ChunkBegin(i)) * element_;
  std::vector<const void*> sources(shm_->size());
  spans_.ForEach(share, [&](const char* in, char* tensor_out, size_t first, size_t n) {
    for (int p = 0; p < shm_->size(); ++p) {
      sources[p] = p == shm_->rank() ? in : Slot(p, i) + offset + first * element_;
    }
    ReduceArgs args = base;
    args.sources = sources.data();
    args.num_sources = shm_->size();
    args.count = n;
    out(&args, tensor_out, first);
    reduce(args);
  });
}

// handback: shm, whose results return in the slots that the inputs came in.
class TwoRankAllreduce : public ShmAllreduce {
 public:
  TwoRankAllreduce(ChannelResources* resources, const Request* request);

 protected:
  bool Combine(size_t i) override;
  void Unpack(size_t i, int owner) override;

 private:
  // Where owner j's share of chunk i lies in a rank's slot.
  char* Place(int local_rank, size_t i, int owner) const;
};

// hierarchical: shm within the node; the combine phase exchanges shares between nodes.
class HierarchicalAllreduce : public ShmAllreduce {
 public:
  HierarchicalAllreduce(ChannelResources* resources, const Request* request);

 protected:
  bool Combine(size_t i) override;
  void SendWithHeader(char* to) override;

 private:
  // An exchange in flight.
  struct Exchange {
    bool scatter;
    size_t chunk;
  };
  // The part of the owners' group memory that a chunk uses, each with `part` elements for each
  // node.
  struct Region {
    size_t part;
    char *partial, *received, *gathered;
  };
  Region RegionOf(size_t i) const;
  bool StartNext();
  bool FinishOldest();
  void StartScatter(size_t i);
  void StartGather(size_t i);
  // Writes the node's sum of the own share of chunk i.
  void ReduceInNode(size_t i, char* out);
  // The share's result has come.
  void StoreResult(size_t i, const char* result);
  void ReduceBetweenNodes(const std::vector<const void*>& sources, size_t count, char* out) const;
  void CombineFromHeaders();

  bool wide_;                    // partial sums travel in the accumulator's type
  size_t accum_;                 // bytes of an element of a partial sum as sent between nodes
  bool with_header_ = false;     // the payload travels with the header
  size_t exchanged_chunks_ = 0;  // those of which this owner has a share
  char* memory_ = nullptr;
  size_t region_bytes_ = 0;
  size_t scatters_ = 0, gathers_ = 0, finished_ = 0;  // chunks that have got so far
  size_t scattered_ = 0;                              // chunks whose parts have arrived
  std::deque<Exchange> in_flight_;                    // the oldest first
};

}  // namespace smddp
