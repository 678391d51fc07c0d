// In which order the ranks of a device group (device_group.h) start collectives.
//
// Two kernels that wait for their peers may exclude each other from a device. So all ranks have to
// start collectives in one order, of both channels; and a device serves one group, that of all
// ranks of the job.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>

namespace smddp {

// The order is that of numbers, which the first rank gives and the votes tell all ranks
// (collective/device/vote.h). The ranks start a collective when they have passed all numbers below
// its own.
class KernelOrder {
 public:
  // For the first rank: the next number, from 1 on.
  int64_t Give() {
    std::lock_guard<std::mutex> lock(mutex_);
    return ++given_;
  }
  bool IsTurnOf(int64_t number) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return number <= next_;
  }
  // The collective has been started, or will not be. May be called again; 0 is no number.
  void Pass(int64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (number >= next_) passed_.insert(number);
    while (passed_.erase(next_) > 0) ++next_;
  }

 private:
  mutable std::mutex mutex_;
  int64_t given_ = 0, next_ = 1;
  std::set<int64_t> passed_;  // not below next_
};

}  // namespace smddp
