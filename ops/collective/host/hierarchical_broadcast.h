// Broadcast between nodes: every byte travels to each other node once, however many ranks the nodes
// have.
#pragma once

#include "collective/pipeline.h"
#include "core/span.h"

namespace smddp {

class HierarchicalBroadcast : public Pipeline {
 public:
  HierarchicalBroadcast(ChannelResources* resources, const Request* request);

 protected:
  void Stage(size_t i) override;
  bool Combine(size_t i) override;
  void Unpack(size_t i, int owner) override;

 private:
  Range Chunk(size_t i) const;
  // Owner j's share of chunk i: a logical range, in elements.
  Range Share(size_t i, int owner) const;
  // Into the own tensor.
  void StoreOwn(size_t i);
  void Store(Range range, const char* from);
  bool StartNext();
  bool FinishOldest();
  char* Region(size_t i) const { return memory_ + i % kSlots * region_bytes_; }
  bool at_root_node() const { return topo_.node == root_node_; }

  SpanList spans_;
  size_t element_, chunk_elements_;
  bool large_;  // copies into the results bypass the caches
  int root_;    // rank of the set
  int root_node_ = 0, root_local_ = 0;
  size_t exchanged_chunks_ = 0;  // those of which this owner has a share
  size_t region_bytes_ = 0;
  char* memory_ = nullptr;  // of the owners' group
  size_t started_ = 0, finished_ = 0;
};

}  // namespace smddp
