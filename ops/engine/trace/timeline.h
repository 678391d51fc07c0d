// Timeline: a Chrome trace of this rank's collectives, to be opened with Perfetto.
//
// When off, it costs one relaxed load per operation. When on, events are buffered as text and
// handed to a thread that writes them when the buffer is large and every second, so a rank that is
// killed leaves a usable trace: the format needs no closing bracket.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "core/background_writer.h"
#include "core/status.h"

namespace smddp {

// Times are in seconds of NowSeconds().
struct TimelineEvent {
  std::string title;
  double ready = 0;    // enqueued
  double started = 0;  // when its turn came in its channel
  double met = 0;      // when all peers had arrived; 0: they never did
  double done = 0;
  size_t bytes = 0;
  uint64_t sequence = 0;  // within its channel: the same on all ranks
  int track = 0;          // the channel
  bool failed = false;
};

class Timeline {
 public:
  ~Timeline() { Stop(); }

  // Of several jobs that one launcher started, each has a rank 0, so files have the launcher's
  // number of this process instead.
  void NumberFilesBy(int process) { process_ = process; }
  // trace.json becomes trace.rank3.json on rank 3.
  Status Start(const std::string& path, int rank);
  // Closes the file, for which it waits some seconds at most; does nothing if the timeline is off.
  void Stop();

  bool on() const { return on_.load(std::memory_order_relaxed); }
  void Add(const TimelineEvent& event);
  void Flush();

 private:
  void FlushLocked();
  void NameTrack(int track);

  std::atomic<bool> on_{false};
  std::mutex mutex_;
  std::unique_ptr<BackgroundWriter> file_;
  std::string buffer_;
  uint64_t named_tracks_ = 0;  // one bit per track
  double to_wall_clock_ = 0;   // seconds to add to NowSeconds() for wall-clock time
  int rank_ = 0;
  int process_ = -1;  // unknown: the rank
};

// The timeline track of one channel of a process set.
inline int TrackOf(int process_set, bool gradients) {
  return 2 * process_set + (gradients ? 1 : 0);
}

}  // namespace smddp
