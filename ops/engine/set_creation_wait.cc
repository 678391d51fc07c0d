#include "engine/set_creation_wait.h"

#include "core/c_numbers.h"

namespace smddp {

Status SetCreationWait::Problem() const {
  const ShmGroup& shm = *everybody_.shm();
  std::string text;
  int code = shm.Failure(&text);
  if (code != 0) return {static_cast<Code>(code), text};
  std::string self = "rank " + std::to_string(everybody_.topology().rank);
  for (int p = 0; p < shm.size(); ++p) {
    // One that has left in good order was here before.
    if (p == shm.rank() || shm.Peer(p) != PeerState::kDead) continue;
    const RankCell& cell = shm.cell(p);
    return {Code::kRemote, "rank " + std::to_string(cell.job_rank) + " (process " +
                               std::to_string(cell.pid) + ") died while " + self +
                               " waited for it in " + what_ +
                               "; this job cannot go on: restart it from its last checkpoint"};
  }
  if (!deadline_.Passed()) return {};
  return {Code::kTimeout,
          self + " waited " + FormatNumber(seconds_) + " s for other ranks in " + what_ +
              ", which is over SMDDP_TIMEOUT_SECONDS; see what those ranks are doing, or raise the "
              "limit if they are only slow"};
}

}  // namespace smddp
