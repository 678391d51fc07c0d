#include "engine/trace/flight_recorder.h"

#include <cstdio>
#include <utility>  // for move

#include "core/deadline.h"

namespace smddp {

uint64_t FlightRecorder::Start(std::string title, size_t bytes, double now) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (entries_.size() == kKept) entries_.pop_front();
  entries_.push_back({next_, std::move(title), bytes, now, 0, "under way"});
  return next_++;
}

void FlightRecorder::Finish(uint64_t number, const char* outcome, double now) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (entries_.empty() || number < entries_.front().number) return;
  Entry& entry = entries_[number - entries_.front().number];
  entry.finished = now;
  entry.outcome = outcome;
}

std::string FlightRecorder::Dump() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::string text;
  double now = NowSeconds();
  for (const Entry& entry : entries_) {
    char line[160];
    double end = entry.finished > 0 ? entry.finished : now;
    std::snprintf(line, sizeof line, ", %zu bytes, began %.3f s ago, took %.6f s: %s", entry.bytes,
                  now - entry.started, end - entry.started, entry.outcome);
    text += "  #" + std::to_string(entry.number) + " " + entry.title + line + "\n";
  }
  return text;
}

}  // namespace smddp
