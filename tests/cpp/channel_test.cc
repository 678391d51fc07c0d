// A channel that others look at, or use, at a bad moment: inside MPI, while it waits for its turn,
// or after its set was removed.
#include <unistd.h>

#include <atomic>
#include <thread>

#include "check.h"
#include "core/deadline.h"
#include "engine_job.h"

namespace {

using namespace smddp_test;

Request ByName(float* value, const std::string& name) {
  Request request = Sum(value, name);
  request.matching = Matching::kByName;
  return request;
}

}  // namespace

TEST(ALinkThatBreaksWhileARankWaitsForItsTurnFailsAllRanks) {
  // Rank 2 asks the first node for the name of the next operation, in every other exchange.
  for (int n : {0, 2, 4}) {
    Wires wires(4, 2, 2, n);
    std::vector<std::string> texts(4);
    RunRanks(4, [&](int rank) {
      auto communicator = Connect(&wires, rank);
      auto everybody = Everybody(*communicator);
      double begin = NowSeconds();
      Status status;
      for (int i = 0; i < 6 && status.ok(); ++i) {
        float value = 1;
        status = everybody->Run(ByName(&value, "x" + std::to_string(i)));
      }
      texts[rank] = status.message();
      float value = 1;
      EXPECT_EQ(everybody->Run(ByName(&value, "later")).message(), texts[rank]);
      EXPECT(NowSeconds() - begin < 10, "exchange " + std::to_string(n));
      communicator->Leave(true);
    });
    EXPECT(texts[2].find("rank 2 failed in allreduce 'x") != std::string::npos, texts[2]);
    EXPECT(texts[2].find("the cable is cut") != std::string::npos, texts[2]);
    for (const std::string& text : texts) EXPECT_EQ(text, texts[2]);
  }
}

TEST(OperationsThatEndWithAFailureOfTheirChannelAreGivenUp) {
  // Peers may be reading the tensors of those behind the one that failed.
  Wires wires(2, 2, 0, 0);
  ChannelCell& cell = wires.connections[0]->shm->channel_cell(0, 0);
  RunRanks(2, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    float value = 1;
    EXPECT(!Everybody(*communicator)->Run(Sum(&value, "x")).ok());
    if (rank == 0) EXPECT_EQ(cell.given_up.load(), uint64_t{1});
    communicator->Leave(true);
  });
}
