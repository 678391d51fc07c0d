// Alltoall between nodes, of parts of any size, in few messages: what the ranks of one node have
// for those of another travels together, in one message per owner of a share and not in one per
// pair of ranks.
#pragma once

#include <string>
#include <vector>

#include "collective/pipeline.h"

namespace smddp {

// How parts are cut. Chunk i has the next `each` bytes of every part in group i % groups.
struct PartCut {
  size_t groups, each;
  PartCut(const ChannelResources& resources, const Request& request);
};

class HierarchicalAlltoall : public Pipeline {
 public:
  HierarchicalAlltoall(ChannelResources* resources, const Request* request);

 protected:
  void Stage(size_t i) override;
  bool Combine(size_t i) override;
  void Unpack(size_t i, int owner) override;
  void SendWithHeader(char* to) override;
  bool AwaitsNode(int node) const override;

 private:
  HierarchicalAlltoall(ChannelResources* resources, const Request* request, const PartCut& cut);
  // Bytes [begin, end) of the part from `source` to `target` that chunk i moves.
  Range Piece(size_t i, int source, int target) const;
  // Where the piece for `target` lies among those that `source` has staged for its own node; with
  // kAll, how many bytes these have.
  size_t StagedOffset(size_t i, int source, int target) const;
  // Bytes that owner j brings from one node to another.
  size_t MessageBytes(size_t i, int from_node, int to_node, int owner) const;
  // Writes this owner's messages one after another, in the order of nodes; returns their sizes.
  std::vector<size_t> PackMessages(size_t i, char* to) const;
  bool FitsHeader() const;
  void ReserveMemory();
  bool StartNext();
  bool FinishOldest();
  void ReceiveFromHeaders();
  // What this owner has received for its node, for the node's other ranks.
  void ShareReceived(size_t i);
  // Into the own tensor: the own part; what `owner` has received; a piece.
  void StoreOwnPart();
  void StoreReceived(size_t i, int owner, const char* messages);
  void Store(int source, Range piece, const char* from);
  char* Region(size_t i) const { return memory_ + i % kSlots * region_bytes_; }
  const char* Received(size_t i) const {
    return with_header_ ? from_headers_.data() : Region(i) + send_bytes_;
  }

  static constexpr int kAll = -1;
  const std::vector<int>& node_;  // the ranks of this one
  bool large_;                    // copies into the results bypass the caches
  PartCut cut_;
  std::vector<const char*> inputs_;  // by target
  std::vector<char*> outputs_;       // by source
  size_t exchanged_chunks_ = 0;      // those that have bytes for another node
  bool with_header_ = false;         // the messages travel with the header
  std::vector<char> from_headers_;
  // Of the owners' group: for each chunk in flight the messages to other nodes, then those from
  // them.
  char* memory_ = nullptr;
  size_t send_bytes_ = 0, region_bytes_ = 0;
  size_t started_ = 0, finished_ = 0;
};

}  // namespace smddp
