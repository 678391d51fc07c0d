#include "transport/mpi/idle_waits.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <mutex>

namespace smddp {
namespace {

// Open MPI's, in libopen-pal: sets whether polls that found nothing pause, returns what was before.
std::atomic<bool (*)(bool)> set_pause{nullptr};

std::mutex mutex;
bool usual = false;  // what mpirun chose; whoever else calls MPI in this process expects that
int of_kind[2] = {0, 0};

void Choose() {
  set_pause.load()(of_kind[IdleWaits::kLookOnly] == 0 && (of_kind[IdleWaits::kNap] > 0 || usual));
}

}  // namespace

void FindIdleWaits(void* library) {
  void* address = ::dlsym(library, "opal_progress_set_yield_when_idle");
  // Open MPI 4 has the former, but always yields.
  if (address == nullptr || ::dlsym(library, "opal_threads_pthreads_yield_init") == nullptr) return;
  std::lock_guard<std::mutex> lock(mutex);
  bool (*found)(bool) = nullptr;
  std::memcpy(&found, &address, sizeof address);
  usual = found(false);
  set_pause = found;
  Choose();
}

IdleWaits::IdleWaits(Kind kind) : kind_(kind), counted_(set_pause.load() != nullptr) {
  if (!counted_) return;
  std::lock_guard<std::mutex> lock(mutex);
  ++of_kind[kind_];
  Choose();
}

IdleWaits::~IdleWaits() {
  if (!counted_) return;
  std::lock_guard<std::mutex> lock(mutex);
  --of_kind[kind_];
  Choose();
}

}  // namespace smddp
