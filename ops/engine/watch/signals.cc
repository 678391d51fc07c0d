#include "engine/watch/signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "core/log.h"

namespace smddp {
namespace {

// Globals, because a signal handler can reach nothing else.
std::atomic<bool> terminated{false};
std::atomic<pid_t> owner{0};

// Wakes the monitor: an eventfd, because a signal handler may write to it, and poll's timeout is
// independent of the wall clock. If there is no free descriptor it is -1, which poll ignores and
// write rejects: the monitor then only polls at its usual interval.
int WakeDescriptor() {
  static const int descriptor = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  return descriptor;
}
std::atomic<int> wake_for_handler{-1};

void Wake(int descriptor) {
  uint64_t one = 1;
  // Fails only after 2^64 wake-ups that were never read.
  [[maybe_unused]] ssize_t written = ::write(descriptor, &one, sizeof one);
}

// The last words: one is written by the handler while the monitor fills the other.
struct Words {
  char text[8192];
  size_t length = 0;
};
Words words[2];
std::atomic<int> current_words{0};
std::atomic<bool> said{false}, saying{false};
std::atomic<GoesOn> goes_on{nullptr};
constexpr int kSayingMs = 200;

// Whether there are last words, which nobody else says then.
bool TakeLastWords() { return words[current_words].length > 0 && !said.exchange(true); }

// May be stuck in the write. If stderr cannot be written, there is nowhere to report it.
void SayLastWords() {
  const Words& last = words[current_words];
  [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, last.text, last.length);
  saying = false;
}

void DieOfTermination() {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(SIGTERM, &action, nullptr);
  ::raise(SIGTERM);
}

void OnTermination(int) {
  int saved = errno;
  if (::getpid() != owner) {
    // A forked child has the handler but no monitor.
    DieOfTermination();
  } else {
    // The monitor is told first: nobody may read stderr.
    const bool says = goes_on == nullptr && TakeLastWords();
    saying = says;
    terminated = true;
    Wake(wake_for_handler);
    if (says) SayLastWords();
  }
  errno = saved;
}

std::atomic<MayInterrupt> may_interrupt{nullptr};
std::atomic<void (*)(int)> handler_before{nullptr};
std::atomic<bool> interrupted{false};

void OnInterrupt(int number) {
  int saved = errno;
  if (::getpid() == owner) {
    interrupted = true;
    Wake(wake_for_handler);
  }
  errno = saved;
  if (auto* before = handler_before.load()) before(number);
}

}  // namespace

void AskBeforeInterrupts(MayInterrupt ask) { may_interrupt = ask; }
MayInterrupt WhoMayInterrupt() { return may_interrupt; }

void WatchInterrupts() {
  if (may_interrupt == nullptr) return;
  struct sigaction current = {};
  sigaction(SIGINT, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) != 0 || current.sa_handler == SIG_DFL ||
      current.sa_handler == SIG_IGN || current.sa_handler == OnInterrupt) {
    return;
  }
  owner = ::getpid();
  wake_for_handler = WakeDescriptor();
  handler_before = current.sa_handler;
  current.sa_handler = OnInterrupt;
  sigaction(SIGINT, &current, nullptr);
}

void UnwatchInterrupts() {
  struct sigaction current = {};
  sigaction(SIGINT, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) != 0 || current.sa_handler != OnInterrupt) return;
  current.sa_handler = handler_before;
  sigaction(SIGINT, &current, nullptr);
}

bool TakeInterrupt() { return interrupted.exchange(false); }

void WatchTermination() {
  struct sigaction current = {};
  sigaction(SIGTERM, nullptr, &current);
  if (current.sa_handler != SIG_DFL) return;
  owner = ::getpid();
  wake_for_handler = WakeDescriptor();
  struct sigaction action = {};
  action.sa_handler = OnTermination;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
}

bool WaitForTermination(int milliseconds) {
  pollfd woken{WakeDescriptor(), POLLIN, 0};
  // Woken, interrupted or timed out: `terminated` decides.
  int seen = ::poll(&woken, 1, milliseconds);
  if (seen > 0 && (woken.revents & POLLIN) != 0) {
    uint64_t times;
    [[maybe_unused]] ssize_t taken = ::read(woken.fd, &times, sizeof times);
  } else if (seen > 0) {
    ::usleep(static_cast<unsigned>(milliseconds) * 1000);  // the script closed all descriptors
  }
  return terminated.exchange(false);
}

void PrepareLastWords(const std::string& lines) {
  static std::mutex mutex;  // between monitors, of which tests have several
  std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;
  int next = 1 - current_words;
  if (said || (lines.empty() && words[1 - next].length == 0)) return;
  words[next].length = std::min(lines.size(), sizeof words[next].text);
  std::memcpy(words[next].text, lines.data(), words[next].length);
  current_words = next;
}

bool SaidLastWords() { return said; }

void AskBeforeTermination(GoesOn ask) {
  goes_on = ask;
  if (ask == nullptr) UnwatchTermination();
}
bool MayGoOnAfterTermination() { return goes_on != nullptr; }
bool GoesOnAfterTermination() {
  GoesOn ask = goes_on;
  return ask != nullptr && ask() != 0;
}

void UnwatchTermination() {
  PrepareLastWords("");
  if (goes_on != nullptr) return;  // the next job's monitor asks, if the signal comes in between
  struct sigaction current = {};
  sigaction(SIGTERM, nullptr, &current);
  if (current.sa_handler != OnTermination) return;
  current.sa_handler = SIG_DFL;
  sigaction(SIGTERM, &current, nullptr);
}

void WakeMonitor() { Wake(WakeDescriptor()); }

void Terminate() {
  for (int waited = 0; saying && waited < kSayingMs; ++waited) ::usleep(1000);
  FlushLog();
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(SIGTERM, &action, nullptr);
  sigset_t unblocked;
  sigemptyset(&unblocked);
  sigaddset(&unblocked, SIGTERM);
  pthread_sigmask(SIG_UNBLOCK, &unblocked, nullptr);
  ::kill(::getpid(), SIGTERM);
  for (;;) ::pause();
}

}  // namespace smddp
