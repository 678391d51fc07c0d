#include "transport/tcp/descriptor.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>  // for exchange

namespace smddp {
namespace {

// All that are open. Never destroyed: they may be closed while the process ends.
struct Open {
  std::mutex mutex;
  std::set<int> fds;
};

Open* Registry() {
  static Open* open = [] {
    auto* made = new Open;
    auto lock = [] { Registry()->mutex.lock(); };
    auto unlock = [] { Registry()->mutex.unlock(); };
    const int registered = pthread_atfork(lock, unlock, [] {
      for (int fd : Registry()->fds) ::close(fd);
      Registry()->fds.clear();
      Registry()->mutex.unlock();
    });
    static_cast<void>(registered);
    return made;
  }();
  return open;
}

}  // namespace

Descriptor::Descriptor(int fd) : fd_(fd) {
  if (fd < 0) return;
  std::lock_guard<std::mutex> lock(Registry()->mutex);
  Registry()->fds.insert(fd);
}

Descriptor::Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void Descriptor::Close() {
  if (fd_ < 0) return;
  std::lock_guard<std::mutex> lock(Registry()->mutex);
  // In a child, which closed it as it began, the number may be another file's by now.
  if (Registry()->fds.erase(fd_) > 0) ::close(fd_);
  fd_ = -1;
}

Status FailedCall(const std::string& what) {
  return {Code::kSystem, what + ": " + std::system_category().message(errno)};
}

}  // namespace smddp
