// BackgroundWriter: writes text to a descriptor on a thread of its own.
//
// A write may take for ever: nobody empties the pipe, or a file server does not answer. Threads
// that watch others or hold a lock therefore only hand over what is to be written.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

namespace smddp {

class BackgroundWriter {
 public:
  // Writes to `descriptor`, which it closes at the end if `owned`. At most `most_bytes` wait to be
  // written. Throws std::system_error if there can be no more threads.
  BackgroundWriter(int descriptor, bool owned, size_t most_bytes);
  // What was handed over is still written, but not waited for.
  ~BackgroundWriter();
  BackgroundWriter(const BackgroundWriter&) = delete;

  // Never waits. Each text is written by a single write(2), if the system takes all of it. Once too
  // much waits, texts are dropped.
  void Write(std::string text);
  // How many texts were dropped since the last call, once there is room again; else 0.
  size_t TakeLost();
  // Waits until all that was handed over has been written, but not longer than this, and not at all
  // while a write is stuck for which an earlier call has waited.
  void Flush(double seconds);

 private:
  struct State {
    int descriptor;
    bool owned;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::string> texts;
    size_t bytes = 0;  // of the texts and of the one that is being written
    size_t lost = 0;
    bool writing = false, stuck = false, closed = false;
  };
  static void Run(State* state);

  const size_t most_bytes_;
  const std::shared_ptr<State> state_;
};

}  // namespace smddp
