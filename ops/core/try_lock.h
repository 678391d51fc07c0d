// A lock for those who must not wait long, while its holder may be stuck inside MPI.
#pragma once

#include <unistd.h>

#include <mutex>

namespace smddp {

// Owns the mutex, unless others have held it, each time it was tried, for some 20 ms.
inline std::unique_lock<std::mutex> TryLock(std::mutex& mutex) {
  constexpr int kTries = 100, kMicroseconds = 200;
  std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  for (int i = 0; i < kTries && !lock.owns_lock(); ++i) {
    ::usleep(kMicroseconds);
    if (lock.try_lock()) break;
  }
  return lock;
}

}  // namespace smddp
