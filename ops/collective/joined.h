// What a rank does for the others' collectives after join(): it takes part with zeros, or with
// nothing.
#pragma once

#include <memory>
#include <vector>

#include "collective/pipeline.h"

namespace smddp {

// The request of a rank that has joined, from what a peer wrote before its first chunk. Where zeros
// would not do (a minimum, a broadcast from this rank, an exchange), it matches nobody's, so that
// the operation fails on all ranks. `memory` holds the zeros and lives as long as the request.
Request JoinedRequest(const SlotHeader& peer, const Topology& topo, std::vector<char>* memory);

// Whether nodes of which all ranks have joined can take part: in sums, averages and barriers.
bool ServedByJoinedNodes(const Request& request);

// Takes part in an operation that brings and takes no bytes of this rank.
class JoinedMove : public Pipeline {
 public:
  JoinedMove(Lane* lane, const Request* request);

 protected:
  void Stage(size_t i) override;
  bool Combine(size_t) override { return true; }
};

}  // namespace smddp
