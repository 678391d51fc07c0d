#include "core/short_slice.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace smddp {
namespace {

// The kernel's least; see sched(7) and Documentation/scheduler/sched-eevdf.rst.
constexpr uint64_t kSliceNanoseconds = 100'000;

// struct sched_attr of linux/sched/types.h, in its first form, which older headers do not have.
struct Attributes {
  uint32_t size;
  uint32_t policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;
};
static_assert(sizeof(Attributes) == 48);

}  // namespace

void TakeShortSlices() {
  Attributes attributes{};
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  constexpr uint32_t kOther = 0;
  // Whoever chose another policy for this process knows why.
  if (attributes.policy != kOther) return;
  attributes.size = sizeof attributes;
  attributes.runtime = kSliceNanoseconds;
  // Without it, or where a sandbox refuses the call, the thread only waits longer for its core.
  static_cast<void>(::syscall(SYS_sched_setattr, 0, &attributes, 0));
}

}  // namespace smddp
