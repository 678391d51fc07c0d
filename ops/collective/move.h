// The collectives that move data without reducing it: broadcast and allgather.
#pragma once

#include "collective/pipeline.h"

namespace smddp {

class ShmBroadcast : public Pipeline {
 public:
  ShmBroadcast(Lane* lane, const Request* request);

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
  ShmAllgather(Lane* lane, const Request* request);

 protected:
  void Stage(size_t i) override;
  bool Combine(size_t i) override;

 private:
  bool large_;
};

// Broadcast, allgather or alltoall of a job on several nodes: the ranks compare signatures as
// always, then MPI moves the bytes.
class WorldMove : public Pipeline {
 public:
  WorldMove(Lane* lane, const Request* request);

 protected:
  void Stage(size_t) override {}
  bool Combine(size_t) override { return true; }
  bool Conclude() override;

 private:
  bool StartNext(Status* status);
  size_t next_ = 0;
  bool started_ = false;
};

}  // namespace smddp
