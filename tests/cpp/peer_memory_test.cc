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
    std::vector<int32_t> data(1000, rank);
    Request request;
    request.kind = Kind::kBroadcast;
    request.dtype = DType::kInt32;
    for (bool agree : {false, true}) {
      request.tensors = {{data.data(), data.data(), {agree || rank != 1 ? 1000 : 999}}};
      Status status = job.Run(rank, request);
      ASSERT(status.code() == (agree ? Code::kOk : Code::kMismatch), status.message());
      EXPECT_EQ(data[0], agree ? 0 : rank);
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
