#include "engine/shutdown_wait.h"

#include <string>

#include "core/c_numbers.h"
#include "core/log.h"
#include "engine/watch/tell_nodes.h"

namespace smddp {
namespace {

constexpr double kLingerSeconds = 5;

}  // namespace

bool ShutdownWait::Pointless() {
  // The monitor's checks; its thread has stopped.
  const ShmGroup& shm = *everybody_.shm();
  Alarm* alarm = everybody_.alarm();
  std::string text;
  int code = 0;
  if (failed_) {
    code = shm.Failure(&text);
    TellNodes(shm, alarm, code, text);
    return linger_.Passed();
  }
  if (deadline_.Passed() && !told_) {
    told_ = true;
    LogWarning("has ended and waits for the other ranks to end, since " + FormatNumber(seconds_) +
               " s");
  }
  if (alarm != nullptr && alarm->Heard(&code, &text)) shm.PostFailure(code, text);
  for (int p = 0; p < shm.size(); ++p) {
    if (p == shm.rank() || shm.Peer(p) != PeerState::kDead) continue;
    shm.PostFailure(static_cast<int>(Code::kRemote),
                    "rank " + std::to_string(shm.cell(p).job_rank) + " died");
  }

  code = shm.Failure(&text);
  if (code == 0) return false;
  LogWarning("will not wait for the other ranks to end: " + text);
  failed_ = true;
  linger_ = Deadline(kLingerSeconds);
  TellNodes(shm, alarm, code, text);
  return false;
}

}  // namespace smddp
