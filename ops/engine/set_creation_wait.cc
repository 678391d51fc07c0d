#include "engine/set_creation_wait.h"

#include <algorithm>

#include "core/c_numbers.h"

namespace smddp {
namespace {

constexpr double kOnItsWaySeconds = 0.5;

}  // namespace

// Whether this rank of the node has ended. One that has left in good order was here before, unless
// the members have not met.
bool SetCreationWait::WillNotCome(int local_rank) {
  const ShmGroup& shm = *everybody_.shm();
  PeerState state = shm.Peer(local_rank);
  if (state == PeerState::kDead) return true;
  const int rank = shm.cell(local_rank).job_rank;
  if (state != PeerState::kLeft) return false;
  if (std::find(members_.begin(), members_.end(), rank) == members_.end()) return false;
  if (!left_) left_.emplace(kOnItsWaySeconds);
  return left_->Passed();
}

Status SetCreationWait::Problem() {
  const ShmGroup& shm = *everybody_.shm();
  std::string text;
  int code = shm.Failure(&text);
  if (code != 0) return {static_cast<Code>(code), text};
  std::string self = "rank " + std::to_string(everybody_.topology().rank);
  for (int p = 0; p < shm.size(); ++p) {
    if (p == shm.rank() || !WillNotCome(p)) continue;
    const RankCell& cell = shm.cell(p);
    const char* how = shm.Peer(p) == PeerState::kDead ? "died" : "has ended or called shutdown()";
    return {Code::kRemote, "rank " + std::to_string(cell.job_rank) + " (process " +
                               std::to_string(cell.pid) + ") " + how + " while " + self +
                               " waited for it in " + what_ +
                               "; this job cannot go on: restart it from its last checkpoint"};
  }
  if (!deadline_.Passed()) return {};
  return {Code::kTimeout,
          self + " waited " + FormatNumber(seconds_) + " s for other ranks in " + what_ +
              ", which is over " + limit_ +
              "; see what those ranks are doing, or raise the limit if they are only slow"};
}

}  // namespace smddp
