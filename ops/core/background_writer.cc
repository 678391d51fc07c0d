#include "core/background_writer.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>  // for move

#include "core/detached_thread.h"

namespace smddp {
namespace {

// A descriptor that cannot be written loses the text: there is nowhere to report it.
void WriteAll(int descriptor, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    ssize_t n = ::write(descriptor, text.data() + done, text.size() - done);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      pollfd writable{descriptor, POLLOUT, 0};
      ::poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace

BackgroundWriter::BackgroundWriter(int descriptor, bool owned, size_t most_bytes)
    : most_bytes_(most_bytes), state_(std::make_shared<State>()) {
  state_->descriptor = descriptor;
  state_->owned = owned;
  // Run allocates nothing.
  RunDetached([state = state_] { Run(state.get()); }, [](const Status&) {});
}

BackgroundWriter::~BackgroundWriter() {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->closed = true;
  state_->changed.notify_all();
}

void BackgroundWriter::Run(State* state) {
  std::unique_lock<std::mutex> lock(state->mutex);
  for (;;) {
    state->changed.wait(lock, [&] { return !state->texts.empty() || state->closed; });
    if (state->texts.empty()) break;
    std::string text = std::move(state->texts.front());
    state->texts.pop_front();
    state->writing = true;
    lock.unlock();
    WriteAll(state->descriptor, text);
    lock.lock();
    state->bytes -= text.size();
    state->writing = state->stuck = false;
    state->changed.notify_all();
  }
  if (state->owned) ::close(state->descriptor);
}

void BackgroundWriter::Write(std::string text) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->bytes + text.size() > most_bytes_) {
    ++state_->lost;
    return;
  }
  state_->bytes += text.size();
  state_->texts.push_back(std::move(text));
  state_->changed.notify_all();
}

size_t BackgroundWriter::TakeLost() {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->bytes > most_bytes_ / 2 ? 0 : std::exchange(state_->lost, 0);
}

void BackgroundWriter::Flush(double seconds) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  if (state_->stuck) return;
  auto written = [&] { return state_->texts.empty() && !state_->writing; };
  state_->stuck = !state_->changed.wait_for(lock, std::chrono::duration<double>(seconds), written);
}

}  // namespace smddp
