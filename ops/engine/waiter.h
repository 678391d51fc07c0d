// How a thread waits: it spins briefly, lends its core for a while, then sleeps: on the rank's
// doorbell inside a node; for MPI, which rings none, it only naps.
#pragma once

#include <functional>

#include "core/deadline.h"
#include "transport/shm/shm_group.h"

namespace smddp {

class Waiter {
 public:
  // `poll`: MPI is awaited too.
  Waiter(const ShmGroup* shm, double spin_seconds, bool poll)
      : shm_(shm), spin_seconds_(spin_seconds), poll_(poll) {}

  // Call when something moved.
  void Reset() { idle_since_ = 0; }
  // Call when nothing did: spins or lends the core. False once it is time to sleep instead.
  bool Linger();
  // Lingers, then sleeps. `look` is called once more before sleeping; true means: do not sleep.
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
