#include "engine/waiter.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

namespace smddp {
namespace {

constexpr int kSleepMs = 100;  // a lost wake-up costs no more than this
// How long a rank that waits for MPI only lets others run, before it sleeps.
constexpr double kYieldSeconds = 1e-3;
constexpr double kLongestNap = 200e-6;

void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// MPI moves only while somebody asks it to, so the peer that is waited for may need this very core;
// a sleep costs 50 us more than it asks for, many times what the message takes.
void Poll(double idle) {
  if (idle < kYieldSeconds) {
    ::sched_yield();
  } else {
    ::usleep(static_cast<unsigned>(1e6 * std::min(kLongestNap, idle / 8)));
  }
}

}  // namespace

void Waiter::Pause(const std::function<bool()>& look) {
  if (idle_since_ == 0) {
    idle_since_ = NowSeconds();
    pauses_ = 0;
  }
  if (poll_) return Poll(NowSeconds() - idle_since_);
  // The clock costs as much as a few looks at a counter.
  constexpr int kPausesPerClock = 16;
  if (spin_seconds_ > 0 && ++pauses_ % kPausesPerClock != 0) return CpuRelax();
  double idle = NowSeconds() - idle_since_;
  if (idle < spin_seconds_) return;
  uint32_t ticket = shm_->PrepareSleep();
  if (look()) {
    shm_->CancelSleep();
  } else {
    shm_->Sleep(ticket, kSleepMs);
  }
}

}  // namespace smddp
