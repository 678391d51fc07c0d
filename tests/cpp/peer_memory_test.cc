// What a rank reads from its peers' memory.
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "emulation.h"
#include "inproc_job.h"
#include "transport/shm/peer_memory.h"

namespace {

using namespace smddp;
using smddp_test::InprocJob;
using smddp_test::kChunk;
using smddp_test::RunRanks;

}  // namespace

TEST(AMismatchOfWhatPeersWouldReadIsSeenFirst) {
  InprocJob job(3, 1, kChunk, true);
  RunRanks(3, [&](int rank) {
    std::vector<int32_t> data(1000, rank), all(3000, -1);
    Request request;
    request.kind = Kind::kAllgather;
    request.dtype = DType::kInt32;
    request.part_bytes.assign(3, 4000);
    for (bool agree : {false, true}) {
      request.tensors = {{data.data(), all.data(), {500, 2}}};
      if (!agree && rank == 1) request.tensors[0].dims = {1000, 1};
      Status status = job.Run(rank, request);
      ASSERT(status.code() == (agree ? Code::kOk : Code::kMismatch), status.message());
      for (int r = 0; r < 3; ++r) EXPECT_EQ(all[r * 1000], agree ? r : -1);
    }
  });
}

TEST(AProcessThatIsGoneIsNotRead) {
  if (smddp_test::NoPeerReads()) return;
  pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  uint64_t secret = 1;
  EXPECT_EQ(ReadPeer(child, {{&secret, reinterpret_cast<uintptr_t>(&secret), 8}}).code(),
            Code::kRemote);
  EXPECT(!CanReadPeer(child, reinterpret_cast<uintptr_t>(&secret), secret));
  EXPECT(CanReadPeer(::getpid(), reinterpret_cast<uintptr_t>(&secret), secret));
  EXPECT_EQ(ReadPeer(::getpid(), {{&secret, 8, 8}}).code(), Code::kSystem);
}
