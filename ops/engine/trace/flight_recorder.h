// FlightRecorder: keeps the last collectives of this rank, to be shown when something fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

namespace smddp {

class FlightRecorder {
 public:
  // Returns the number to pass to Finish.
  uint64_t Start(std::string title, size_t bytes, double now);
  void Finish(uint64_t number, const char* outcome, double now);
  // One line per collective, the newest last.
  std::string Dump() const;

 private:
  static constexpr size_t kKept = 16;
  struct Entry {
    uint64_t number;
    std::string title;
    size_t bytes;
    double started;
    double finished;  // 0: in progress
    const char* outcome;
  };
  mutable std::mutex mutex_;
  std::deque<Entry> entries_;
  uint64_t next_ = 0;
};

}  // namespace smddp
