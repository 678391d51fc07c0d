// Whole ranks of the engine whose GPUs are connected by NCCL: joined ranks, mismatches, both
// channels at once, and what ends a job. nccl_test.cc has the results.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "core/deadline.h"
#include "nccl_job.h"

namespace {

using namespace smddp_test;

bool Has(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

bool AllAre(const GpuRequest<float>& one, size_t count, int size, double less = 0) {
  for (size_t i = 0; i < count; ++i) {
    if (one.At(0, i) != SumAt(i, size) - less) return false;
  }
  return true;
}

// Runs such collectives on `size` ranks until one fails; the statuses, in rank order.
std::vector<Status> RunUntilFailure(NcclWires* wires, const FloatsOf& floats, double timeout,
                                    const std::function<void(int, RankSet*)>& at_begin = {},
                                    const std::function<void(int)>& at_end = {}) {
  int size = floats.size;
  std::vector<Status> outcomes(static_cast<size_t>(size));
  // A kernel of a rank that failed early may still wait for the others.
  std::vector<std::unique_ptr<GpuRequest<float>>> requests(static_cast<size_t>(size));
  RunRanks(size, [&](int rank) {
    auto communicator = Connect(wires, rank, timeout);
    auto everybody = Everybody(*communicator);
    double begin = NowSeconds();
    if (at_begin) at_begin(rank, everybody.get());
    Status status;
    auto& one = requests[static_cast<size_t>(rank)];
    for (int round = 0; round < 3 && status.ok(); ++round) {
      one = floats.Make(rank);
      status = everybody->Run(one->request);
      if (status.ok()) EXPECT(floats.IsRight(rank, *one));
    }
    EXPECT(NowSeconds() - begin < timeout + 5, "rank " + std::to_string(rank));
    EXPECT(!status.ok(), "no failure on rank " + std::to_string(rank));
    double then = one->At(0, 0);
    ::usleep(100000);
    EXPECT_EQ(one->At(0, 0), then, "written after the failure");
    outcomes[static_cast<size_t>(rank)] = status;
    if (at_end) at_end(rank);
    communicator->Leave(true);
  });
  return outcomes;
}

}  // namespace

TEST(NcclOfWholeRanksEndsInGoodOrder) {
  for (int nodes : {1, 2}) {
    Calls destroyed("ncclCommDestroy"), aborted("ncclCommAbort");
    NcclWires wires(4, nodes);
    RunRanks(4, [&](int rank) {
      auto communicator = Connect(&wires, rank);
      auto everybody = Everybody(*communicator);
      for (int round = 0; round < 20; ++round) {
        auto one = FloatSum(rank, 5000);
        Status status = everybody->Run(one->request);
        ASSERT(status.ok(), status.message());
        EXPECT(AllAre(*one, 5000, 4));
      }
      std::string stats = communicator->StatsJson();
      bool told = stats.find(
                      "\"nccl\": \"2.32.3\", \"nccl_collectives\": 20, "
                      "\"nccl_bytes\": 400000, \"nccl_packed\": 0") != std::string::npos;
      EXPECT(told, stats);
      communicator->Leave(false);
    });
    EXPECT_EQ(destroyed.count(), 4);
    EXPECT_EQ(aborted.count(), 0);
  }
}

TEST(AJoinedRankLeavesTensorsOfGpusToTheHost) {
  for (int nodes : {1, 2}) {
    for (int early : {0, 1}) {  // the first rank, which has a part of its own in a vote, or another
      Calls reductions("ncclAllReduce");
      NcclWires wires(4, nodes);
      RunRanks(4, [&](int rank) {
        auto communicator = Connect(&wires, rank);
        auto everybody = Everybody(*communicator);
        for (int batch = 0; batch < 4 - (rank == early); ++batch) {
          auto one = FloatSum(rank, 5000);
          Status status = everybody->Run(one->request);
          ASSERT(status.ok(), status.message());
          bool right = true;
          for (size_t i = 0; i < 5000; ++i) {
            double less = batch == 3 ? static_cast<double>(i % 7) + early : 0;
            right = right && one->At(0, i) == SumAt(i, 4) - less;
          }
          EXPECT(right, "batch " + std::to_string(batch));
        }
        int last = -1;
        Status joined = everybody->Join(&last);
        EXPECT(joined.ok() && last != early, joined.message());
        // And with all of them again.
        auto one = FloatSum(rank, 5000);
        Status status = everybody->Run(one->request);
        EXPECT(status.ok() && AllAre(*one, 5000, 4), status.message());
        communicator->Leave(false);
      });
      EXPECT_EQ(reductions.count(), 4 * 4);
    }
  }
}

TEST(MismatchedTensorsOfGpusLeaveNcclUsable) {
  for (int nodes : {1, 2}) {
    NcclWires wires(4, nodes);
    RunRanks(4, [&](int rank) {
      auto communicator = Connect(&wires, rank);
      auto everybody = Everybody(*communicator);
      RunMismatched(everybody.get(), rank);

      // Of a broadcast, which NCCL would run.
      auto two = FloatsOf{Kind::kBroadcast, 4, 50}.Make(rank);
      if (rank == 1) two->request.root = 0;
      Status status = everybody->Run(two->request);
      EXPECT(status.code() == Code::kMismatch && Has(status, "root_rank=0"), status.message());
      EXPECT(two->At(0, 0) == rank, "a tensor was changed");

      // The last rank's tensor is in host memory.
      std::vector<float> host(100);
      auto one = FloatSum(rank, 100);
      status = everybody->Run(rank == 3 ? Sum(host.data(), "x", 100) : one->request);
      EXPECT(status.code() == Code::kMismatch && Has(status, "in cuda memory"), status.message());

      status = everybody->Run(one->request);
      EXPECT(status.ok() && AllAre(*one, 100, 4), status.message());
      communicator->Leave(false);
    });
  }
}

// Gradients, and collectives of each kind at random.
TEST(NcclServesBothChannelsAtOnce) {
  Setting slow("FAKE_CUDA_DELAY", "200"), late("FAKE_NCCL_DELAY", "200");
  constexpr int kRanks = 3, kRounds = 40;
  for (int nodes : {1, 3}) {
    // The second time, whatever takes memory waits for the kernels that are under way.
    Setting waits("FAKE_CUDA_WAITS", nodes == 1 ? "0" : "1");
    NcclWires wires(kRanks, nodes);
    Calls connections("ncclCommInitRankConfig");
    RunRanks(kRanks, [&](int rank) {
      auto communicator = Connect(&wires, rank, 60);
      auto everybody = Everybody(*communicator);
      auto info = Plan(1);
      auto dawdle = [random = std::mt19937(static_cast<unsigned>(rank) + 1)]() mutable {
        ::usleep(random() % 1500);
      };
      std::thread gradients([&, dawdle]() mutable {
        for (int round = 0; round < kRounds; ++round) {
          dawdle();
          auto one = FloatSum(rank, 3000, "");
          one->Add(100, true, [](size_t) { return 1; });
          std::atomic<bool> done{false};
          Status outcome;
          auto bucket = std::make_unique<Operation>();
          bucket->request = one->request;
          bucket->done = [&](const Status& status) {
            outcome = status;
            done = true;
          };
          int64_t run = 0;
          ASSERT(everybody->BeginPlan(info, &run).ok());
          everybody->SubmitBucket(run, 0, std::move(bucket));
          while (!done) ::usleep(50);
          EXPECT(outcome.ok() && AllAre(*one, 3000, kRanks), outcome.message());
        }
      });
      std::mt19937 same(static_cast<unsigned>(nodes));  // on all ranks
      for (int round = 0; round < 2 * kRounds; ++round) {
        dawdle();
        size_t kind = same() % std::size(kKindsOfNccl);
        FloatsOf floats{kKindsOfNccl[kind], kRanks, 1 + same() % 20000};
        auto one = floats.Make(rank);
        Status status = everybody->Run(one->request);
        EXPECT(status.ok() && floats.IsRight(rank, *one), status.message());
      }
      gradients.join();
      communicator->Leave(false);
    });
    EXPECT_EQ(connections.count(), kRanks);
  }
}

TEST(AJoinedRankLeavesWhatIsMovedToTheHost) {
  Calls broadcasts("ncclBroadcast");
  NcclWires wires(3, 1);
  RunRanks(3, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    auto everybody = Everybody(*communicator);
    for (int batch = 0; batch < 2 && (batch == 0 || rank != 1); ++batch) {
      // From rank 2; and rank 1 has no rows.
      for (Kind kind : {Kind::kBroadcast, Kind::kAllgather}) {
        FloatsOf floats{kind, 3, 500};
        auto one = floats.Make(rank);
        Status status = everybody->Run(one->request);
        EXPECT(status.ok() && floats.IsRight(rank, *one), status.message());
      }
    }
    int last = -1;
    Status joined = everybody->Join(&last);
    EXPECT(joined.ok() && last != 1, joined.message());
    communicator->Leave(false);
  });
  EXPECT_EQ(broadcasts.count(), 3 + 3 * 2);  // by three ranks; two have rows to gather
}

// ---- what ends a job ----------------------------------------------------------------------------

TEST(AnErrorOfNcclIsOneOnAllRanks) {
  Setting bad("FAKE_NCCL_FAIL", "1");
  for (int nodes : {1, 3}) {
    for (Kind kind : kKindsOfNccl) {
      Calls aborts("ncclCommAbort");
      NcclWires wires(3, nodes);
      for (const Status& status : RunUntilFailure(&wires, {kind, 3, 1000}, 20)) {
        std::string title = std::string("rank 1 failed in ") + KindName(kind) + " 'x'";
        EXPECT(Has(status, title), status.message());
        EXPECT(Has(status, "unhandled system error"), status.message());
      }
      EXPECT_EQ(aborts.count(), 3);
    }
  }
}

TEST(AKernelOfNcclThatDoesNotEndIsATimeout) {
  Setting hang("FAKE_NCCL_HANG", "2");
  for (Kind kind : {Kind::kAllreduce, Kind::kAlltoall}) {
    Calls aborts("ncclCommAbort");
    NcclWires wires(3, 1);
    for (const Status& status : RunUntilFailure(&wires, {kind, 3, 1000}, 1)) {
      EXPECT(status.code() == Code::kTimeout, status.message());
      EXPECT(Has(status, "SMDDP_TIMEOUT_SECONDS=1"), status.message());
    }
    EXPECT_EQ(aborts.count(), 3);
  }
}

namespace {

void DieDuring(Kind kind) {
  Setting hang("FAKE_NCCL_HANG", "0");
  Calls aborts("ncclCommAbort");
  NcclWires wires(2, 1);
  std::vector<std::thread> breakers(2);
  double begin = NowSeconds();
  auto fail_later = [&](int rank, RankSet* set) {
    breakers[static_cast<size_t>(rank)] = std::thread([set] {
      ::usleep(300000);
      FailSet(set, {Code::kRemote, "rank 9 died"});
    });
  };
  auto join = [&](int rank) { breakers[static_cast<size_t>(rank)].join(); };
  for (const Status& status : RunUntilFailure(&wires, {kind, 2, 1000}, 60, fail_later, join)) {
    EXPECT(Has(status, "rank 9 died"), status.message());
  }
  EXPECT(NowSeconds() - begin < 5);
  EXPECT_EQ(aborts.count(), 2);
}

}  // namespace

TEST(ADeathWhileNcclRunsStopsIt) {
  for (Kind kind : kKindsOfNccl) DieDuring(kind);
}

TEST(AGpuThatNeverComputesIsNamedThoughNcclWaitsForIt) {
  NcclWires wires(2, 1);
  Gate gate;
  std::atomic<int> left{2};
  std::vector<std::unique_ptr<GpuRequest<float>>> requests(2);
  RunRanks(2, [&](int rank) {
    auto communicator = Connect(&wires, rank, 1);
    auto everybody = Everybody(*communicator);
    auto& one = requests[static_cast<size_t>(rank)] = FloatSum(rank, 100);
    if (rank == 0) one->request.ready = gate.In(rank);
    Status status = everybody->Run(one->request);
    EXPECT(status.code() == Code::kTimeout, status.message());
    bool named = Has(status, "rank 0 waited") && Has(status, "its own device");
    EXPECT(named || (Has(status, "rank 1 waited") && Has(status, "for rank 0")), status.message());
    communicator->Leave(true);
    --left;
    while (left > 0) ::usleep(1000);
    gate.Open();
  });
}
