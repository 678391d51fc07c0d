// The library's clock: monotonic, in seconds.
#pragma once

#include <chrono>

namespace smddp {

inline double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A point in time after which a wait gives up.
class Deadline {
 public:
  explicit Deadline(double seconds_from_now) : at_(NowSeconds() + seconds_from_now) {}
  bool Passed() const { return NowSeconds() >= at_; }

 private:
  double at_;
};

}  // namespace smddp
