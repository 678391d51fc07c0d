#include "engine/signals.h"

#include <semaphore.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace smddp {
namespace {

// A signal handler reaches only globals.
std::atomic<bool> terminated{false};
pid_t owner = 0;
sem_t* Wake() {
  static sem_t* semaphore = [] {
    static sem_t storage;
    sem_init(&storage, 0, 0);
    return &storage;
  }();
  return semaphore;
}
sem_t* wake_for_handler = nullptr;

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
    terminated = true;
    sem_post(wake_for_handler);
  }
  errno = saved;
}

}  // namespace

void WatchTermination() {
  struct sigaction current = {};
  sigaction(SIGTERM, nullptr, &current);
  if (current.sa_handler != SIG_DFL) return;
  owner = ::getpid();
  wake_for_handler = Wake();
  struct sigaction action = {};
  action.sa_handler = OnTermination;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
}

bool WaitForTermination(int milliseconds) {
  timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += milliseconds * 1000000L;
  until.tv_sec += until.tv_nsec / 1000000000L;
  until.tv_nsec %= 1000000000L;
  // Posted, interrupted or timed out: the flag says which.
  sem_timedwait(Wake(), &until);
  return terminated.exchange(false);
}

void UnwatchTermination() {
  struct sigaction current = {};
  sigaction(SIGTERM, nullptr, &current);
  if (current.sa_handler != OnTermination) return;
  current.sa_handler = SIG_DFL;
  sigaction(SIGTERM, &current, nullptr);
}

void WakeMonitor() { sem_post(Wake()); }

void Terminate() {
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
