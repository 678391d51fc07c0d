#include "engine/waiter.h"

#include <unistd.h>

namespace smddp {
namespace {

constexpr int kSleepMs = 100;  // a lost wake-up costs no more than this
constexpr double kPollPatience = 2e-3;

void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Waiter::Pause(const std::function<bool()>& look) {
  // The clock costs as much as a few looks at a counter.
  constexpr int kPausesPerClock = 16;
  if (idle_since_ == 0) {
    idle_since_ = NowSeconds();
    pauses_ = 0;
  }
  if (spin_seconds_ > 0 && ++pauses_ % kPausesPerClock != 0) return CpuRelax();
  double idle = NowSeconds() - idle_since_;
  if (idle < spin_seconds_) return;
  if (poll_) {
    ::usleep(idle < kPollPatience ? 5 : 200);
    return;
  }
  uint32_t ticket = shm_->PrepareSleep();
  if (look()) {
    shm_->CancelSleep();
  } else {
    shm_->Sleep(ticket, kSleepMs);
  }
}

}  // namespace smddp
