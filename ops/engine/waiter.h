// How a thread waits: it spins briefly, then yields its core for a while, then sleeps on the rank's
// doorbell. Where MPI must be polled it naps instead, because MPI cannot wake a sleeping thread.
//
// Yielding is for cores that nobody else wants. A thread that yields to others goes behind all of
// them, each time further (Linux 6.18 has it forfeit its slice), while one that was asleep comes
// next once it is woken. So a yield that lends the core for long is the last: the thread sleeps,
// and the rank's next waits do not yield for a while.
#pragma once

#include <atomic>
#include <functional>

#include "core/deadline.h"
#include "transport/shm/shm_group.h"

namespace smddp {

class Waiter {
 public:
  // `poll`: MPI must be polled too. `crowded_until`: of the rank; written where others want the
  // core.
  Waiter(const ShmGroup* shm, double spin_seconds, bool poll, std::atomic<double>* crowded_until)
      : shm_(shm), spin_seconds_(spin_seconds), poll_(poll), crowded_until_(crowded_until) {}

  // Call it after progress.
  void Reset() { idle_since_ = 0; }
  // Call it after no progress: spins or yields. Returns false once it is time to sleep.
  bool Linger();
  // Lingers, then sleeps. `look` is called once more before sleeping; if it returns true, the
  // thread does not sleep.
  void Pause(const std::function<bool()>& look);

 private:
  bool Yield(double now);
  void Sleep(const std::function<bool()>& look) const;

  const ShmGroup* shm_;
  double spin_seconds_;
  bool poll_;
  std::atomic<double>* crowded_until_;
  double idle_since_ = 0;  // 0: not idle
  int pauses_ = 0;
};

}  // namespace smddp
