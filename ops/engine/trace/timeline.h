// Timeline: a Chrome trace of this rank's collectives, which Perfetto opens.
//
// Off it costs one relaxed load an operation. On, an event is text in a buffer, which goes to the
// file when it is large and every second, so a rank that is killed leaves what it had: the format
// needs no end.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>

#include "core/status.h"

namespace smddp {

// Times are of NowSeconds().
struct TimelineEvent {
  std::string title;
  double ready = 0;    // enqueued
  double started = 0;  // its turn in its channel
  double met = 0;      // all peers were there; 0: they never were
  double done = 0;
  size_t bytes = 0;
  uint64_t sequence = 0;  // in its channel: the same on all ranks
  int track = 0;          // the channel
  bool failed = false;
};

class Timeline {
 public:
  ~Timeline() { Stop(); }

  // trace.json becomes trace.rank3.json on rank 3.
  Status Start(const std::string& path, int rank);
  // Writes the rest; nothing happens if it is off.
  void Stop();

  bool on() const { return on_.load(std::memory_order_relaxed); }
  void Add(const TimelineEvent& event);
  void Flush();

 private:
  void FlushLocked();
  void NameTrack(int track);

  std::atomic<bool> on_{false};
  std::mutex mutex_;
  std::FILE* file_ = nullptr;
  std::string buffer_;
  uint64_t named_tracks_ = 0;  // a bit each
  double to_wall_clock_ = 0;   // seconds from NowSeconds() to the time of day
  int rank_ = 0;
};

// The track of a channel of a process set.
inline int TrackOf(int process_set, bool gradients) {
  return 2 * process_set + (gradients ? 1 : 0);
}

}  // namespace smddp
