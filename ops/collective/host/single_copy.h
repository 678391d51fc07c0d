// Allgather and alltoall of large tensors inside a node, with a single copy per byte.
//
// Each rank publishes the addresses of its inputs in its slot; peers read the bytes that they need
// from there directly into their own outputs (transport/shm/peer_memory.h). A rank is done only
// when all peers are, since they may be reading its inputs until then. Nobody writes into a peer's
// memory: it may have been reused by the time a failure is noticed.
//
// Where the kernel refuses a read (device memory, secret memory, a process that was locked down),
// the reader sets a verdict in its slot header. All ranks see every verdict at the end of the
// operation, so all of them agree to repeat it through the slots.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collective/pipeline.h"

namespace smddp {

class SingleCopyMove : public Collective {
 public:
  SingleCopyMove(ChannelResources* resources, const Request* request);
  ~SingleCopyMove() override;

  // The reason why it cannot serve the request; "" if it can.
  static std::string Cannot(const ChannelResources& resources, const Request& request);

  Progress Advance() override;
  const Status& status() const override;
  double met_at() const override;
  std::vector<int> Missing() const override;
  bool MayWaitForOtherNodes() const override { return false; }  // within a node only

 private:
  class Reading;

  ChannelResources* resources_;
  const Request* request_;
  std::unique_ptr<Reading> reading_;
  std::unique_ptr<Pipeline> through_slots_;  // the repetition, if some rank could not read
};

}  // namespace smddp
