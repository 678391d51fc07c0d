#include "transport/mpi/idle_waits.h"

#include <dlfcn.h>

#include <cstring>
#include <mutex>

namespace smddp {
namespace {

// Open MPI's, in libopen-pal: sets whether polls that found nothing pause, returns what was before.
bool (*set_pause)(bool) = nullptr;

std::mutex mutex;
bool usual = false;  // what mpirun chose; whoever else calls MPI in this process expects that
int of_kind[2] = {0, 0};

void Choose() {
  if (set_pause == nullptr) return;
  set_pause(of_kind[IdleWaits::kLookOnly] == 0 && (of_kind[IdleWaits::kNap] > 0 || usual));
}

}  // namespace

void FindIdleWaits(void* library) {
  void* address = ::dlsym(library, "opal_progress_set_yield_when_idle");
  // Open MPI 4 has the former, but always yields.
  if (address == nullptr || ::dlsym(library, "opal_threads_pthreads_yield_init") == nullptr) return;
  std::lock_guard<std::mutex> lock(mutex);
  std::memcpy(&set_pause, &address, sizeof address);
  usual = set_pause(false);
  Choose();
}

IdleWaits::IdleWaits(Kind kind) : kind_(kind) {
  std::lock_guard<std::mutex> lock(mutex);
  ++of_kind[kind_];
  Choose();
}

IdleWaits::~IdleWaits() {
  std::lock_guard<std::mutex> lock(mutex);
  --of_kind[kind_];
  Choose();
}

}  // namespace smddp
