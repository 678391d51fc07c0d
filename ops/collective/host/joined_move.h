// JoinedMove: a joined rank's part in an operation to which it contributes no bytes and from which
// it takes none.
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
