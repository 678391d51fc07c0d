// Stands in for the calls by which the library waits, sleeps, locks, starts threads, reads the
// clock and looks at other processes (the linker sends them here: --wrap in ops/CMakeLists.txt).
// Inside a fiber they are the scheduler's; outside, and for all else, the system's own.
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "os_calls.h"
#include "scheduler.h"

namespace smddp_sim {
namespace {

constexpr int kFirstPid = 100000;

// What is shared by all ranks of the process but belongs to each rank in truth.
struct System {
  std::map<const void*, int> robust_owner;  // rank, -1: nobody
  std::map<int, int> wakes;                 // of monitors, by rank
  std::map<uintptr_t, int> threads;         // fibers, by the id that we gave
  uintptr_t next_thread = 1;
};

System& Shared() {
  static System system;
  return system;
}

double Seconds(const timespec& time) {
  return static_cast<double>(time.tv_sec) + time.tv_nsec * 1e-9;
}

}  // namespace

void ResetSystem() { Shared() = System(); }

}  // namespace smddp_sim

using smddp_sim::Scheduler;
using smddp_sim::Shared;

#define REAL(name) __real_##name
#define WRAP(name) __wrap_##name

extern "C" {

// ---- the clock, and sleeping -------------------------------------------------------------------

std::chrono::steady_clock::time_point __real__ZNSt6chrono3_V212steady_clock3nowEv();
std::chrono::steady_clock::time_point __wrap__ZNSt6chrono3_V212steady_clock3nowEv() {
  Scheduler* s = Scheduler::Current();
  if (s == nullptr) return __real__ZNSt6chrono3_V212steady_clock3nowEv();
  s->LookAtClock();
  return std::chrono::steady_clock::time_point(
      std::chrono::nanoseconds(static_cast<int64_t>(s->now() * 1e9)));
}

int REAL(clock_gettime)(clockid_t clock, timespec* time);
int WRAP(clock_gettime)(clockid_t clock, timespec* time) {
  Scheduler* s = Scheduler::Current();
  if (s == nullptr) return REAL(clock_gettime)(clock, time);
  auto nanos = static_cast<int64_t>(s->now() * 1e9);
  *time = {nanos / 1000000000, nanos % 1000000000};
  return 0;
}

int REAL(sched_yield)();
int WRAP(sched_yield)() {
  Scheduler* s = Scheduler::Current();
  if (s == nullptr) return REAL(sched_yield)();
  s->Pause(300e-6 * s->random().Unit(), "lent its core");
  return 0;
}

// Longer than asked for, as a busy system may: a poll every 200 us would be most of a schedule.
int REAL(usleep)(useconds_t micros);
int WRAP(usleep)(useconds_t micros) {
  Scheduler* s = Scheduler::Current();
  if (s == nullptr) return REAL(usleep)(micros);
  s->Pause(micros * 1e-6 * (1 + 100 * s->random().Unit()), "naps");
  return 0;
}

long REAL(syscall)(long number, ...);
long WRAP(syscall)(long number, ...) {
  long a[6];
  va_list list;
  va_start(list, number);
  for (long& one : a) one = va_arg(list, long);
  va_end(list);
  Scheduler* s = Scheduler::Current();
  if (s == nullptr || number != SYS_futex) {
    return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  }
  auto* word = reinterpret_cast<uint32_t*>(a[0]);
  if (a[1] == FUTEX_WAKE) return s->Wake(word, static_cast<int>(a[2]));
  if (*word == static_cast<uint32_t>(a[2])) {
    auto* timeout = reinterpret_cast<const timespec*>(a[3]);
    double seconds = timeout == nullptr ? -1 : smddp_sim::Seconds(*timeout);
    if (s->Block(word, seconds, "sleeps on its doorbell")) return 0;
    errno = ETIMEDOUT;
  } else {
    errno = EAGAIN;
  }
  return -1;
}

// ---- what wakes a monitor: a descriptor of its process, so one for each rank --------------------

static int wake_descriptor = -1;  // made once, and the same number on all ranks

int REAL(eventfd)(unsigned int initial, int flags);
int WRAP(eventfd)(unsigned int initial, int flags) {
  return wake_descriptor = REAL(eventfd)(initial, flags);
}

int REAL(poll)(pollfd* files, nfds_t count, int milliseconds);
int WRAP(poll)(pollfd* files, nfds_t count, int milliseconds) {
  Scheduler* s = Scheduler::Current();
  if (s == nullptr) return REAL(poll)(files, count, milliseconds);
  int& wakes = Shared().wakes[s->rank()];
  if (wakes == 0) s->Block(&wakes, milliseconds * 1e-3, "waits for its monitor's tick");
  files[0].revents = wakes > 0 ? POLLIN : 0;
  return wakes > 0;
}

ssize_t REAL(read)(int file, void* to, size_t bytes);
ssize_t WRAP(read)(int file, void* to, size_t bytes) {
  Scheduler* s = Scheduler::Current();
  if (s == nullptr || file != wake_descriptor) return REAL(read)(file, to, bytes);
  Shared().wakes[s->rank()] = 0;
  return static_cast<ssize_t>(bytes);
}

ssize_t REAL(write)(int file, const void* from, size_t bytes);
ssize_t WRAP(write)(int file, const void* from, size_t bytes) {
  Scheduler* s = Scheduler::Current();
  if (s == nullptr || file != wake_descriptor) return REAL(write)(file, from, bytes);
  int& wakes = Shared().wakes[s->rank()];
  ++wakes;
  s->Wake(&wakes, 1);
  return static_cast<ssize_t>(bytes);
}

// ---- mutexes -----------------------------------------------------------------------------------

int REAL(pthread_mutex_init)(pthread_mutex_t* mutex, const pthread_mutexattr_t* attributes);
int WRAP(pthread_mutex_init)(pthread_mutex_t* mutex, const pthread_mutexattr_t* attributes) {
  int robust = PTHREAD_MUTEX_STALLED;
  if (attributes != nullptr) pthread_mutexattr_getrobust(attributes, &robust);
  if (Scheduler::Current() != nullptr && robust == PTHREAD_MUTEX_ROBUST) {
    Shared().robust_owner[mutex] = -1;
  }
  return REAL(pthread_mutex_init)(mutex, attributes);
}

int REAL(pthread_mutex_trylock)(pthread_mutex_t* mutex);
int WRAP(pthread_mutex_trylock)(pthread_mutex_t* mutex) {
  Scheduler* s = Scheduler::Current();
  auto& robust = Shared().robust_owner;
  auto it = s == nullptr ? robust.end() : robust.find(mutex);
  if (it == robust.end()) return REAL(pthread_mutex_trylock)(mutex);
  int owner = it->second;
  if (owner >= 0 && !s->dead(owner)) return EBUSY;
  it->second = s->rank();
  return owner >= 0 ? EOWNERDEAD : 0;
}

int REAL(pthread_mutex_lock)(pthread_mutex_t* mutex);
int WRAP(pthread_mutex_lock)(pthread_mutex_t* mutex) {
  Scheduler* s = Scheduler::Current();
  if (s == nullptr) return REAL(pthread_mutex_lock)(mutex);
  int error;
  while ((error = WRAP(pthread_mutex_trylock)(mutex)) == EBUSY) s->Pause(20e-6, "wants a mutex");
  return error;
}

int REAL(pthread_mutex_unlock)(pthread_mutex_t* mutex);
int WRAP(pthread_mutex_unlock)(pthread_mutex_t* mutex) {
  auto& robust = Shared().robust_owner;
  auto it = Scheduler::Current() == nullptr ? robust.end() : robust.find(mutex);
  if (it == robust.end()) return REAL(pthread_mutex_unlock)(mutex);
  it->second = -1;
  return 0;
}

// ---- condition variables and threads of the C++ library ----------------------------------------

// Outside of fibers, when all is over, nobody waits.
static void NotifyFibers(const void* condition, int most) {
  if (Scheduler* s = Scheduler::Current()) s->Wake(condition, most);
}
void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(
    std::condition_variable* condition, std::unique_lock<std::mutex>* lock) {
  lock->unlock();
  Scheduler::Current()->Block(condition, -1, "waits for a condition");
  lock->lock();
}
void __wrap__ZNSt18condition_variable10notify_oneEv(std::condition_variable* condition) {
  NotifyFibers(condition, 1);
}
void __wrap__ZNSt18condition_variable10notify_allEv(std::condition_variable* condition) {
  NotifyFibers(condition, 1 << 20);
}

static int TimedCondition(pthread_cond_t* condition, pthread_mutex_t* mutex,
                          const timespec* until) {
  Scheduler* s = Scheduler::Current();
  WRAP(pthread_mutex_unlock)(mutex);
  bool woken = s->Block(condition, std::max(0.0, smddp_sim::Seconds(*until) - s->now()),
                        "waits for a condition, or some time");
  WRAP(pthread_mutex_lock)(mutex);
  return woken ? 0 : ETIMEDOUT;
}
int WRAP(pthread_cond_clockwait)(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t,
                                 const timespec* until) {
  return TimedCondition(condition, mutex, until);
}
int WRAP(pthread_cond_timedwait)(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                 const timespec* until) {
  return TimedCondition(condition, mutex, until);
}

// A std::thread is its id, and nothing else.
void __wrap__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(
    std::thread* thread, std::unique_ptr<std::thread::_State>* state, void (*)()) {
  static_assert(sizeof(std::thread) == sizeof(uintptr_t), "the id of a thread is all it has");
  Scheduler* s = Scheduler::Current();
  std::shared_ptr<std::thread::_State> body(std::move(*state));
  int fiber = s->Spawn(s->rank(), "a thread", false, [body] { body->_M_run(); });
  uintptr_t id = Shared().next_thread++;
  Shared().threads[id] = fiber;
  std::memcpy(static_cast<void*>(thread), &id, sizeof id);
}
void __wrap__ZNSt6thread4joinEv(std::thread* thread) {
  uintptr_t id = 0, none = 0;
  std::memcpy(&id, static_cast<void*>(thread), sizeof id);
  Scheduler* s = Scheduler::Current();
  while (!s->Done(Shared().threads[id])) s->Pause(100e-6, "joins a thread");
  std::memcpy(static_cast<void*>(thread), &none, sizeof none);
}

// ---- processes ---------------------------------------------------------------------------------

int REAL(sigaction)(int number, const struct sigaction* action, struct sigaction* old);
int WRAP(sigaction)(int number, const struct sigaction* action, struct sigaction* old) {
  if (Scheduler::Current() == nullptr) return REAL(sigaction)(number, action, old);
  if (old != nullptr) std::memset(old, 0, sizeof *old);
  return 0;
}

pid_t REAL(getpid)();
pid_t WRAP(getpid)() {
  Scheduler* s = Scheduler::Current();
  return s == nullptr ? REAL(getpid)() : smddp_sim::kFirstPid + s->rank();
}

ssize_t REAL(process_vm_readv)(pid_t pid, const iovec* here, unsigned long n_here,
                               const iovec* there, unsigned long n_there, unsigned long flags);
ssize_t WRAP(process_vm_readv)(pid_t pid, const iovec* here, unsigned long n_here,
                               const iovec* there, unsigned long n_there, unsigned long flags) {
  Scheduler* s = Scheduler::Current();
  if (s == nullptr) return REAL(process_vm_readv)(pid, here, n_here, there, n_there, flags);
  int rank = pid - smddp_sim::kFirstPid;
  if (rank < 0 || rank >= 64 || s->dead(rank)) return errno = ESRCH, -1;
  ssize_t bytes = 0;
  for (unsigned long i = 0; i < n_here; ++i) {
    std::memcpy(here[i].iov_base, there[i].iov_base, here[i].iov_len);
    bytes += static_cast<ssize_t>(here[i].iov_len);
  }
  return bytes;
}

// ---- the log -----------------------------------------------------------------------------------

// smddp::WriteToStderr(): on a fiber without its thread, which would be one of the system.
void REAL(_ZN5smddp13WriteToStderrERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE)(
    const std::string& line);
void WRAP(_ZN5smddp13WriteToStderrERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE)(
    const std::string& line) {
  if (Scheduler::Current() == nullptr) {
    return REAL(_ZN5smddp13WriteToStderrERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE)(
        line);
  }
  [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

// ---- where a thread of the library may lose its core -------------------------------------------

// ShmGroup::RingPeers() const: after each counter that is published.
void __real__ZNK5smddp8ShmGroup9RingPeersEv(const void* group);
void __wrap__ZNK5smddp8ShmGroup9RingPeersEv(const void* group) {
  __real__ZNK5smddp8ShmGroup9RingPeersEv(group);
  if (Scheduler* s = Scheduler::Current()) s->Preempt("lost its core after publishing");
}

}  // extern "C"
