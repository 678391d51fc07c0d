// Threads that flush subnormal numbers, as those of TensorFlow's pools, and others that do not.
#include <cstring>

#include "check.h"
#include "inproc_job.h"

#if SMDDP_X86
#include <xmmintrin.h>
#endif

namespace {

using namespace smddp;
using smddp_test::InprocJob;
using smddp_test::JobShape;
using smddp_test::kChunk;
using smddp_test::RunRanks;

// From now on this thread takes subnormal numbers for zeros.
void FlushSubnormals() {
#if SMDDP_X86
  _mm_setcsr(_mm_getcsr() | 0x8040);
#elif SMDDP_ARM64
  uint64_t mode;
  __asm__ __volatile__("mrs %0, fpcr" : "=r"(mode));
  __asm__ __volatile__("msr fpcr, %0" : : "r"(mode | 1 << 24));
#endif
}

// Compared as integers, since a thread that flushes takes them for equal.
uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

}  // namespace

TEST(RanksWhoseThreadsFlushSubnormalsGetTheSameBits) {
  constexpr float kSmall = 0x1p-140f;
  for (JobShape shape : {JobShape{2, 1}, {3, 1}, {2, 2}, {4, 2}}) {
    for (size_t count : {1, 100, 5000}) {
      InprocJob job(shape.size, shape.nodes, kChunk);
      auto total = static_cast<uint32_t>(shape.size) * Bits(kSmall);
      RunRanks(shape.size, [&](int rank) {
        if (rank == 0) FlushSubnormals();
        std::vector<uint32_t> values(count, Bits(kSmall));
        Request request;
        request.op = ReduceOp::kSum;
        request.name = "x";
        request.tensors = {{values.data(), values.data(), {static_cast<int64_t>(count)}}};
        Status status = job.Run(rank, request);
        EXPECT(status.ok(), status.message());
        for (uint32_t value : values)
          ASSERT_EQ(value, total, smddp_test::Case(shape, count, "sum"));
      });
    }
  }
}
