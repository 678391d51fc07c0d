// The slices that a thread asks the scheduler for, as the kernel reports them.
#include "core/short_slice.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <thread>

#include "check.h"

using namespace smddp;

namespace {

struct Attributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;
};

Attributes OfThisThread() {
  Attributes found{};
  EXPECT_EQ(::syscall(SYS_sched_getattr, 0, &found, sizeof found, 0), 0L);
  return found;
}

}  // namespace

// Kernels before 6.12 tell no slice: 0, before and after.
TEST(AThreadTakesShortSlicesAndStaysAsItIsElse) {
  Attributes before{}, after{};
  std::thread([&] {
    before = OfThisThread();
    TakeShortSlices();
    after = OfThisThread();
  }).join();
  EXPECT_EQ(after.policy, before.policy);
  EXPECT_EQ(after.nice, before.nice);
  EXPECT_EQ(after.runtime, before.runtime == 0 ? uint64_t{0} : uint64_t{100'000});
  EXPECT_EQ(OfThisThread().runtime, before.runtime, "of other threads");
}
