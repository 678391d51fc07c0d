// Takes part, after join(), in an operation that brings and takes no bytes of this rank.
#pragma once

#include "collective/pipeline.h"

namespace smddp {

class JoinedMove : public Pipeline {
 public:
  JoinedMove(ChannelResources* resources, const Request* request);

 protected:
  void Stage(size_t i) override;
  bool Combine(size_t) override { return true; }
};

}  // namespace smddp
