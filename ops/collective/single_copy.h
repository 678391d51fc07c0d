// Broadcast, allgather and alltoall of large tensors inside a node, with one copy a byte.
//
// Each rank publishes in its slot where its inputs lie; who wants bytes of them reads them straight
// from there into its own outputs (transport/peer_memory.h). A rank is done once all peers are,
// since they read its inputs until then. It never writes into a peer's memory: that may belong to
// somebody else by the time a failure is noticed.
#pragma once

#include <string>

#include "collective/pipeline.h"

namespace smddp {

class SingleCopyMove : public Pipeline {
 public:
  SingleCopyMove(Lane* lane, const Request* request);

  // Why it cannot serve; "" if it can.
  static std::string Cannot(const Lane& lane, const Request& request);

 protected:
  void Stage(size_t) override;
  bool Combine(size_t) override;

 private:
  struct Table;
  Status ReadBroadcast(const Table& root);
  Status ReadPart(const Table& source, int rank);
  bool large_;
};

}  // namespace smddp
