#include "core/log_writer.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <system_error>

#include "core/background_writer.h"

namespace smddp {
namespace {

constexpr size_t kMostBytes = 1 << 20;
constexpr double kFlushSeconds = 0.5;

// Of one process: a forked child has neither the thread nor, perhaps, the lock.
struct Writer {
  pid_t process;
  BackgroundWriter to_stderr;
};
std::atomic<Writer*> writer{nullptr};  // never destroyed: threads log while a process exits

// Null if there is no thread to be had.
BackgroundWriter* ToStderr() {
  Writer* current = writer;
  const pid_t self = ::getpid();
  if (current != nullptr && current->process == self) return &current->to_stderr;
  try {
    auto* own = new Writer{self, {STDERR_FILENO, false, kMostBytes}};
    if (!writer.compare_exchange_strong(current, own)) {
      delete own;
      return &current->to_stderr;
    }
    static const int registered = std::atexit(FlushStderr);
    static_cast<void>(registered);
    return &own->to_stderr;
  } catch (const std::system_error&) {
    return nullptr;
  }
}

// Where no thread can do it.
void WriteIfPossible(const std::string& line) {
  pollfd writable{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&writable, 1, 0) <= 0 || (writable.revents & POLLOUT) == 0) return;
  [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

void WriteToStderr(const std::string& line) {
  BackgroundWriter* to_stderr = ToStderr();
  if (to_stderr == nullptr) return WriteIfPossible(line);
  to_stderr->Write(line);
}

size_t TakeLostLines() {
  Writer* current = writer;
  return current != nullptr && current->process == ::getpid() ? current->to_stderr.TakeLost() : 0;
}

void FlushStderr() {
  Writer* current = writer;
  if (current != nullptr && current->process == ::getpid()) current->to_stderr.Flush(kFlushSeconds);
}

}  // namespace smddp
