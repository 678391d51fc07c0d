// ShutdownWait: how long a rank that is shutting down waits for the others.
#pragma once

#include "core/config.h"
#include "core/deadline.h"
#include "engine/rank_set.h"

namespace smddp {

class ShutdownWait {
 public:
  ShutdownWait(const Config& config, const RankSet& everybody)
      : seconds_(config.timeout_seconds), everybody_(everybody), deadline_(seconds_) {}

  // True a few seconds after a rank has failed, since the ranks will never all arrive. The delay
  // lets the others report and save their state: the launcher kills them as soon as this process
  // exits without MPI_Finalize.
  bool Pointless();

 private:
  const double seconds_;
  const RankSet& everybody_;
  Deadline deadline_;
  Deadline linger_{0};
  bool told_ = false, failed_ = false;
};

}  // namespace smddp
