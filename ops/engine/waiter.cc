#include "engine/waiter.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

namespace smddp {
namespace {

constexpr int kSleepMs = 100;  // bounds the cost of a lost wake-up
// How long a waiting rank yields its core before it sleeps: a wake-up costs more than most messages
// take, and with more ranks than cores the peer may need this very core.
constexpr double kYieldSeconds = 1e-3;
constexpr double kLongestNap = 200e-6;
// A rank that shares the core hands it back within 0.3 ms, with its script's lines between two
// small collectives: caches are cold after each switch. A thread that computes keeps it for its
// slice, which is of milliseconds.
constexpr double kLentSeconds = 1e-3;
constexpr double kCrowdedSeconds = 100e-3;

void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  // `yield` does nothing on most processors; a barrier of the instruction stream does pause them.
  __asm__ __volatile__("isb" ::: "memory");
#endif
}

}  // namespace

bool Waiter::Linger() {
  if (idle_since_ == 0) {
    idle_since_ = NowSeconds();
    pauses_ = 0;
  }
  // Reading the clock costs as much as checking a few counters.
  constexpr int kPausesPerClock = 16;
  if (spin_seconds_ > 0 && !poll_ && ++pauses_ % kPausesPerClock != 0) {
    CpuRelax();
    return true;
  }
  double now = NowSeconds();
  double idle = now - idle_since_;
  if (!poll_ && idle < spin_seconds_) return true;
  return idle < spin_seconds_ + kYieldSeconds && Yield(now);
}

// Returns false if the thread should rather sleep.
bool Waiter::Yield(double now) {
  // Where it naps, it must come back by itself, and keeps to short slices (RankSet::ProgressLoop).
  if (!poll_ && now < crowded_until_->load(std::memory_order_relaxed)) return false;
  ::sched_yield();
  if (poll_) return true;
  double back = NowSeconds();
  if (back - now < kLentSeconds) return true;
  crowded_until_->store(back + kCrowdedSeconds, std::memory_order_relaxed);
  return false;
}

void Waiter::Pause(const std::function<bool()>& look) {
  if (Linger()) return;
  if (poll_) {
    // MPI cannot wake a sleeping thread, and progresses only while it is polled.
    double idle = NowSeconds() - idle_since_;
    ::usleep(static_cast<unsigned>(1e6 * std::min(kLongestNap, idle / 8)));
  } else {
    Sleep(look);
  }
}

void Waiter::Sleep(const std::function<bool()>& look) const {
  uint32_t ticket = shm_->PrepareSleep();
  if (look()) {
    shm_->CancelSleep();
  } else {
    shm_->Sleep(ticket, kSleepMs);
  }
}

}  // namespace smddp
