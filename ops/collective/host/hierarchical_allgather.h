// Allgather between nodes: every byte travels to each other node once, however many ranks the nodes
// have.
#pragma once

#include <vector>

#include "collective/pipeline.h"

namespace smddp {

class HierarchicalAllgather : public Pipeline {
 public:
  HierarchicalAllgather(ChannelResources* resources, const Request* request);

 protected:
  void Stage(size_t i) override;
  bool Combine(size_t i) override;
  void Unpack(size_t i, int owner) override;

 private:
  // Where the bytes of a rank's part in a chunk lie among those that their owner exchanges.
  struct Place {
    size_t offset, bytes;
  };
  // Bytes [begin, end) of rank r's part that chunk i moves.
  Range Piece(size_t i, int r) const;
  // By rank, for the ranks that `owner` carries; and the bytes and offset of each node.
  std::vector<Place> Layout(size_t i, int owner, std::vector<size_t>* bytes,
                            std::vector<size_t>* offsets) const;
  // What a rank of this node contributes to the chunk.
  const char* Staged(size_t i, int local) const;
  // Into the own tensor: rank r's piece, and all that `owner` exchanged.
  void CopyPiece(size_t i, int r, const char* from);
  void CopyCarried(size_t i, int owner);
  bool StartNext();
  bool FinishOldest();
  char* Region(size_t i) const { return memory_ + i % kSlots * region_bytes_; }

  bool large_;                  // copies into the results bypass the caches
  size_t each_;                 // bytes of a rank's part in a chunk
  std::vector<char*> outputs_;  // by rank
  size_t region_bytes_ = 0;
  char* memory_ = nullptr;  // of the owners' group
  size_t started_ = 0, finished_ = 0;
};

}  // namespace smddp
