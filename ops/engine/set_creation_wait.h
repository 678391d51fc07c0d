// SetCreationWait: how long a rank waits for the others when a process set is added: inside MPI, or
// for the set's members alone.
#pragma once

#include <optional>
#include <string>
#include <utility>  // for move
#include <vector>

#include "core/config.h"
#include "core/deadline.h"
#include "core/status.h"
#include "engine/rank_set.h"

namespace smddp {

class SetCreationWait {
 public:
  SetCreationWait(const Config& config, const RankSet& everybody, std::string what)
      : SetCreationWait(config, everybody, std::move(what), {}, 0) {}
  // For `members` that have not met before. `own_limit`: in seconds; 0: SMDDP_TIMEOUT_SECONDS.
  SetCreationWait(const Config& config, const RankSet& everybody, std::string what,
                  std::vector<int> members, double own_limit)
      : seconds_(own_limit > 0 ? own_limit : config.timeout_seconds),
        limit_(own_limit > 0 ? "its timeout" : "SMDDP_TIMEOUT_SECONDS"),
        everybody_(everybody),
        what_(std::move(what)),
        members_(std::move(members)),
        deadline_(seconds_) {}

  // Why the others will not come; OK: they may. No operation is under way that the monitor could
  // look at.
  Status Problem();

 private:
  bool WillNotCome(int local_rank);

  const double seconds_;
  const char* const limit_;
  const RankSet& everybody_;
  const std::string what_;
  const std::vector<int> members_;
  const Deadline deadline_;
  std::optional<Deadline> left_;  // what a member did before it left may still be on its way
};

}  // namespace smddp
