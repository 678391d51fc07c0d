// SetCreationWait: how long a rank waits inside MPI for the others when a process set is added.
#pragma once

#include <string>
#include <utility>  // for move

#include "core/config.h"
#include "core/deadline.h"
#include "core/status.h"
#include "engine/rank_set.h"

namespace smddp {

class SetCreationWait {
 public:
  SetCreationWait(const Config& config, const RankSet& everybody, std::string what)
      : seconds_(config.timeout_seconds),
        everybody_(everybody),
        what_(std::move(what)),
        deadline_(seconds_) {}

  // Why the others will not come; OK: they may. No operation is under way that the monitor could
  // look at.
  Status Problem() const;

 private:
  const double seconds_;
  const RankSet& everybody_;
  const std::string what_;
  Deadline deadline_;
};

}  // namespace smddp
