// Broadcast, allgather and alltoall of large tensors inside a node, with one copy a byte.
//
// Each rank publishes in its slot where its inputs lie; who wants bytes of them reads them straight
// from there into its own outputs (transport/shm/peer_memory.h). A rank is done once all peers are,
// since they read its inputs until then. It never writes into a peer's memory: that may belong to
// somebody else by the time a failure is noticed.
//
// Memory that the kernel does not let a peer read (a device's, a secret, any once a process was
// locked down) is told of in the reader's slot header. Each rank sees all of these when all are
// done, so all alike then do the whole operation again, through the slots.
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

  // Why it cannot serve; "" if it can.
  static std::string Cannot(const ChannelResources& resources, const Request& request);

  Progress Advance() override;
  const Status& status() const override;
  double met_at() const override;
  std::vector<int> Missing() const override;

 private:
  class Reading;

  ChannelResources* resources_;
  const Request* request_;
  std::unique_ptr<Reading> reading_;
  std::unique_ptr<Pipeline> through_slots_;  // instead, if somebody could not read
};

}  // namespace smddp
