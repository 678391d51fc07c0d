// Broadcast and allgather inside a node: data is moved through the slots without being reduced.
#pragma once

#include "collective/pipeline.h"

namespace smddp {

class ShmBroadcast : public Pipeline {
 public:
  ShmBroadcast(ChannelResources* resources, const Request* request);

 protected:
  void Stage(size_t i) override;
  bool Combine(size_t i) override;

 private:
  Range Chunk(size_t i) const;
  SpanList spans_;
  bool large_;
  int root_;  // local rank
};

class ShmAllgather : public Pipeline {
 public:
  ShmAllgather(ChannelResources* resources, const Request* request);

 protected:
  void Stage(size_t i) override;
  bool Combine(size_t i) override;

 private:
  std::vector<char*> outputs_;  // by rank
  bool large_;
};

}  // namespace smddp
