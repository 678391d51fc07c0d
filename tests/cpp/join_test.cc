// join() among operations that are matched by name.
#include <unistd.h>

#include <thread>

#include "check.h"
#include "engine_job.h"

using namespace smddp_test;

TEST(AMismatchOfNamesIsOneThoughTheFirstRankHasJoined) {
  Wires wires(3, 1);
  RunRanks(3, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    auto everybody = Everybody(*communicator);
    float value = 1;
    if (rank > 0) {
      Status status = everybody->Run(Sum(&value, rank == 1 ? "a" : "b"));
      EXPECT(status.code() == Code::kMismatch, status.message());
    }
    int last = -1;
    Status joined = everybody->Join(&last);
    EXPECT(joined.ok(), joined.message());
    communicator->Leave(false);
  });
}

TEST(AJoinedRankServesWhatTheFirstRankBegins) {
  // Ranks 0 and 1 have two threads each; rank 2 finds what rank 1 begins first, or rank 0.
  for (int round = 0; round < 5; ++round) {
    Wires wires(3, 1);
    RunRanks(3, [&](int rank) {
      auto communicator = Connect(&wires, rank, 5);
      auto everybody = Everybody(*communicator);
      auto run = [&](const char* name) {
        float value = 1;
        Status status = everybody->Run(Sum(&value, name));
        EXPECT(status.ok() && value == 2, status.message());
      };
      if (rank < 2) {
        const char* names[] = {"a", "b"};
        std::thread second([&] {
          ::usleep(100000);
          run(names[1 - rank]);
        });
        if (rank == 0) ::usleep(20000);  // rank 1 is what rank 2 finds
        run(names[rank]);
        second.join();
      }
      int last = -1;
      Status joined = everybody->Join(&last);
      EXPECT(joined.ok(), joined.message());
      communicator->Leave(false);
    });
  }
}
