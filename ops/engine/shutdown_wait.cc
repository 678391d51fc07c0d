#include "engine/shutdown_wait.h"

#include <string>

#include "core/c_numbers.h"
#include "core/log.h"

namespace smddp {
namespace {

constexpr double kLingerSeconds = 5;

}  // namespace

bool ShutdownWait::Pointless() {
  if (failed_) {
    TellNodes();
    return linger_.Passed();
  }
  if (deadline_.Passed() && !told_) {
    told_ = true;
    LogWarning("has ended and waits for the other ranks to end, since " + FormatNumber(seconds_) +
               " s");
  }
  // The monitor's checks; its thread has stopped.
  const ShmGroup& shm = *everybody_.shm();
  std::string text;
  int code = 0;
  Alarm* alarm = everybody_.alarm();
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
  TellNodes();
  return false;
}

void ShutdownWait::TellNodes() {
  std::string text;
  int code = everybody_.shm()->Failure(&text);
  Alarm* alarm = everybody_.alarm();
  nodes_told_ = nodes_told_ || alarm == nullptr || alarm->Raise(code, text);
}

}  // namespace smddp
