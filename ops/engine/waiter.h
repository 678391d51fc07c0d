// How a thread waits: it spins briefly, then yields its core for a while, then sleeps on the rank's
// doorbell. Where MPI must be polled it naps instead, because MPI cannot wake a sleeping thread.
#pragma once

#include <functional>

#include "core/deadline.h"
#include "transport/shm/shm_group.h"

namespace smddp {

class Waiter {
 public:
  // `poll`: MPI must be polled too.
  Waiter(const ShmGroup* shm, double spin_seconds, bool poll)
      : shm_(shm), spin_seconds_(spin_seconds), poll_(poll) {}

  // Call it after progress.
  void Reset() { idle_since_ = 0; }
  // Call it after no progress: spins or yields. Returns false once it is time to sleep.
  bool Linger();
  // Lingers, then sleeps. `look` is called once more before sleeping; if it returns true, the
  // thread does not sleep.
  void Pause(const std::function<bool()>& look);

 private:
  void Sleep(const std::function<bool()>& look) const;

  const ShmGroup* shm_;
  double spin_seconds_;
  bool poll_;
  double idle_since_ = 0;  // 0: not idle
  int pauses_ = 0;
};

}  // namespace smddp
