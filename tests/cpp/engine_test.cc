// The engine after a failure: nothing returns OK any more, nothing waits for ever, everybody hears.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "check.h"
#include "core/deadline.h"
#include "engine_job.h"

namespace {

using namespace smddp_test;

// A bucket that notes how it ended.
struct Outcome {
  std::atomic<int> times{0};
  Status status;
  float value = 1;
  std::unique_ptr<Operation> Bucket() {
    auto operation = std::make_unique<Operation>();
    operation->request = Sum(&value, "");
    operation->done = [this](const Status& result) {
      status = result;
      ++times;
    };
    return operation;
  }
  bool Done(double seconds) const {
    for (Deadline limit(seconds); times == 0 && !limit.Passed();) ::usleep(500);
    return times == 1;
  }
};

// A channel of its own for plan runs; nothing advances it.
struct PlanBench {
  Wires wires{1, 1};
  Selector selector;
  FlightRecorder recorder;
  Timeline timeline;
  Channel channel{std::move(wires.connections[0]->channels[1]),
                  &selector,
                  &recorder,
                  &timeline,
                  0,
                  true,
                  [](const Status&, bool) {}};
  BucketScheduler runs{&channel};
  int64_t Begin(int buckets) {
    int64_t run = 0;
    Status status = runs.Begin(Plan(buckets), &run);
    EXPECT(status.ok(), status.message());
    return run;
  }
};

void FailRuns(PlanBench* bench, const Status& failure) {
  Endings endings;
  bench->runs.Fail(failure, &endings);
  for (const auto& end : endings) end();
}

const Status kBroken = {Code::kRemote, "rank 1 died"};

}  // namespace

// ---- a channel ----------------------------------------------------------------------------------

TEST(AfterAFailureEveryOperationFailsAlike) {
  // In the first operation, between two of its exchanges, and later.
  for (int n : {0, 1, 2, 3, 5}) {
    Wires wires(4, 2, 0, n);
    std::string note = "exchange " + std::to_string(n) + " fails";
    std::vector<std::string> first(4);
    RunRanks(4, [&](int rank) {
      auto communicator = Connect(&wires, rank);
      auto everybody = Everybody(*communicator);
      double begin = NowSeconds();
      int failures = 0;
      for (int i = 0; i < 12 && failures < 4; ++i) {
        std::vector<float> values(3000, static_cast<float>(rank + 1 + 10 * i));
        Status status = everybody->Run(Sum(values.data(), "x", values.size()));
        if (status.ok()) {
          EXPECT_EQ(failures, 0, note + ": OK after a failure");
          EXPECT_EQ(values[2999], 10.0f + 40 * i, note);
          continue;
        }
        if (++failures == 1) first[rank] = status.message();
        EXPECT_EQ(status.message(), first[rank], note);
      }
      EXPECT_EQ(failures, 4, note);
      EXPECT(NowSeconds() - begin < 10, note);
      EXPECT(communicator->failed(), note);
      int64_t run = 0;
      Status begun = everybody->BeginPlan(Plan(1), &run);
      EXPECT_EQ(begun.message(), first[rank], note);
      communicator->Leave(true);
    });
    // Every rank of both nodes has the cause.
    EXPECT(first[0].find("the cable is cut") != std::string::npos, first[0]);
    EXPECT(first[0].find("rank 0 failed in allreduce 'x'") != std::string::npos, first[0]);
    for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(first[rank], first[0], note);
  }
}

TEST(AMismatchLeavesTheJobUsable) {
  Wires wires(2, 1);
  RunRanks(2, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    float value = 1;
    Status status = Everybody(*communicator)->Run(Sum(&value, rank == 0 ? "a" : "b"));
    EXPECT(status.code() == Code::kMismatch, status.message());
    value = 1;
    status = Everybody(*communicator)->Run(Sum(&value, "c"));
    EXPECT(status.ok(), status.message());
    EXPECT_EQ(value, 2.0f);
    communicator->Leave(false);
  });
}

TEST(AFailureInASetBreaksTheJobEverywhere) {
  // The set of ranks 0 and 2, on two nodes, has wires of its own; ranks 1 and 3 are not in it.
  Wires wires(4, 2), own(2, 2, 0, 3);
  RunRanks(4, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    double begin = NowSeconds();
    Status status;
    float value = 1;
    if (rank % 2 == 0) {
      Selector selector;
      FlightRecorder recorder;
      Timeline timeline;
      RankSet set(1, std::move(own.connections[rank / 2]), &selector, &recorder, &timeline, 0,
                  [&](const Status& why, bool first) {
                    communicator->Break(why, first);
                    FailSet(&set, why);
                  });
      if (rank == 0) {
        while (status.ok() && NowSeconds() - begin < 10) status = set.Run(Sum(&value, "half"));
      } else {
        // In the job's own test the communicator breaks the set as well.
        std::thread other([&] {
          while (!communicator->failed() && NowSeconds() - begin < 10) ::usleep(1000);
          FailSet(&set, kBroken);
        });
        while (status.ok() && NowSeconds() - begin < 10) status = set.Run(Sum(&value, "half"));
        other.join();
      }
      EXPECT(!status.ok());
      status = {};
    }
    if (status.ok()) status = Everybody(*communicator)->Run(Sum(&value, "whole"));
    EXPECT(status.message().find("the cable is cut") != std::string::npos, status.message());
    EXPECT(NowSeconds() - begin < 10, std::to_string(rank));
    communicator->Leave(true);
  });
}

// ---- plan runs ----------------------------------------------------------------------------------

TEST(HeldBucketsEndWithTheFailure) {
  PlanBench bench;
  int64_t run = bench.Begin(3);
  Outcome held, late, next;
  bench.runs.Arrive(run, 2, held.Bucket());  // bucket 0 has not come
  FailRuns(&bench, kBroken);
  EXPECT_EQ(held.times, 1);
  EXPECT_EQ(held.status.message(), kBroken.message());
  // A bucket that was on its way, and a later step; the first failure is what they are told.
  FailRuns(&bench, {Code::kNotInitialized, "shut down"});
  bench.runs.Arrive(run, 1, late.Bucket());
  EXPECT_EQ(late.times, 1);
  EXPECT_EQ(late.status.message(), kBroken.message());
  int64_t id = 0;
  EXPECT_EQ(bench.runs.Begin(Plan(1), &id).message(), kBroken.message());
  bench.runs.Arrive(run + 1, 0, next.Bucket());
  EXPECT_EQ(next.status.message(), kBroken.message());
  std::shared_ptr<EmptyRun> empty;
  EXPECT_EQ(bench.runs.End(run, &empty).message(), kBroken.message());
  EXPECT(bench.channel.Idle());  // nothing went to the others
}

TEST(BucketsAreHandedOnInPlanOrder) {
  PlanBench bench;
  int64_t run = bench.Begin(3);
  std::vector<int> order;
  auto bucket = [&](int index) {
    auto operation = std::make_unique<Operation>();
    operation->request.kind = Kind::kBarrier;
    operation->done = [&order, index](const Status&) { order.push_back(index); };
    bench.runs.Arrive(run, index, std::move(operation));
    for (int i = 0; i < 10; ++i) bench.channel.Pump();
  };
  bucket(2);
  EXPECT(order.empty());
  bucket(0);
  EXPECT_EQ(order.size(), size_t{1});
  bucket(1);
  EXPECT(order == std::vector<int>({0, 1, 2}));
  std::string what;
  EXPECT_EQ(bench.runs.Inspect(1, &what), 0.0);
  EXPECT_EQ(what, std::string());
}

TEST(AStepThatIsGivenUpEndsItsHeldBuckets) {
  PlanBench bench;
  Outcome held, stale;
  int64_t run = bench.Begin(2);
  bench.runs.Arrive(run, 1, held.Bucket());
  std::string what;
  bench.runs.Inspect(1, &what);
  EXPECT_EQ(bench.runs.Inspect(1, &what), 1.0);
  EXPECT(what.find("waits for bucket 0 (1 later ones are here)") != std::string::npos, what);
  bench.Begin(1);
  EXPECT(held.status.code() == Code::kMismatch, held.status.message());
  bench.runs.Arrive(run, 0, stale.Bucket());
  EXPECT(stale.status.code() == Code::kMismatch, stale.status.message());
}

TEST(AStepThatFailedBeforeJoinIsGivenUp) {
  for (int nodes = 1; nodes <= 2; ++nodes) {
    Wires wires(2, nodes);
    RunRanks(2, [&](int rank) {
      auto communicator = Connect(&wires, rank);
      auto everybody = Everybody(*communicator);
      Outcome first, second;
      int64_t run = 0;
      EXPECT(everybody->BeginPlan(Plan(2), &run).ok());
      everybody->SubmitBucket(run, 0, first.Bucket());
      EXPECT(first.Done(10) && first.status.ok());
      if (rank == 0) {
        everybody->SubmitBucket(run, 1, second.Bucket());
        EXPECT(second.Done(10));
        EXPECT_EQ(static_cast<int>(second.status.code()), static_cast<int>(Code::kMismatch));
      }
      int last = -1;
      Status joined = everybody->Join(&last);
      EXPECT(joined.ok(), joined.message());
      communicator->Leave(false);
    });
  }
}

TEST(HeldBucketsEndWhenAPeerTimesOutOrThisRankLeaves) {
  for (bool leave : {false, true}) {
    Wires wires(2, 1);
    RunRanks(2, [&](int rank) {
      auto communicator = Connect(&wires, rank, 0.3);
      auto everybody = Everybody(*communicator);
      Outcome held, late;
      int64_t run = 0;
      float value = 1;
      if (rank == 0) {
        ASSERT(everybody->BeginPlan(Plan(2), &run).ok());
        everybody->SubmitBucket(run, 1, held.Bucket());
        ::usleep(20000);
        if (leave) communicator->Leave(false);
        EXPECT(held.Done(2), leave ? "leave" : "timeout");
        everybody->SubmitBucket(run, 0, late.Bucket());
        EXPECT(late.Done(0.5), leave ? "leave" : "timeout");
        EXPECT_EQ(late.status.message(), held.status.message());
        everybody->EndPlan(run, [](const Status& ended) { EXPECT(!ended.ok()); });
      } else {
        EXPECT(!everybody->Run(Sum(&value, "nobody comes")).ok());
      }
      communicator->Leave(true);
    });
  }
}

// ---- waiting ------------------------------------------------------------------------------------

TEST(AStallInAMismatchNamesWhoIsMissing) {
  Wires wires(3, 1);
  Selector selector;
  float value = 1;
  std::vector<Request> requests;
  for (const char* name : {"a", "b", "c"}) requests.push_back(Sum(&value, name));
  std::vector<std::unique_ptr<Collective>> collectives;
  for (int r = 0; r < 3; ++r) {
    collectives.push_back(selector.Make(&wires.connections[r]->channels[0], &requests[r], nullptr));
  }
  auto advance = [&](int r) {
    bool done = false;
    for (int i = 0; i < 5 && !done; ++i) done = collectives[r]->Advance() == Progress::kDone;
    return done;
  };
  EXPECT(!advance(0));
  EXPECT(collectives[0]->Missing() == std::vector<int>({1, 2}));
  EXPECT(!advance(1));
  EXPECT(!advance(2));  // has posted its report, for all have begun; the others have not
  EXPECT(collectives[2]->Missing() == std::vector<int>({0, 1}));
  EXPECT(!advance(0));
  EXPECT(collectives[0]->Missing() == std::vector<int>({1}));
  EXPECT(advance(1));
  EXPECT(advance(0) && advance(2));
}

// ---- cycles -------------------------------------------------------------------------------------

TEST(RanksThatWaitForEachOtherInDifferentChannelsFailAtOnce) {
  Wires wires(3, 1);
  std::vector<std::string> texts(3);
  RunRanks(3, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    auto everybody = Everybody(*communicator);
    double begin = NowSeconds();
    float value = 1;
    EXPECT(everybody->Run(Sum(&value, "all")).ok());
    if (rank == 1) {
      texts[rank] = everybody->Run(Sum(&value, "accuracy")).message();
    } else {
      Outcome bucket;
      int64_t run = 0;
      EXPECT(everybody->BeginPlan(Plan(1), &run).ok());
      everybody->SubmitBucket(run, 0, bucket.Bucket());
      EXPECT(bucket.Done(10));
      texts[rank] = bucket.status.message();
    }
    EXPECT(NowSeconds() - begin < 10);
    communicator->Leave(true);
  });
  EXPECT(texts[0].find("in allreduce 'accuracy'") != std::string::npos, texts[0]);
  EXPECT(texts[0].find("in gradient bucket 0 of 'tape' (step 1)") != std::string::npos, texts[0]);
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]);
}

TEST(ARankThatIsOnlySlowIsNoCycle) {
  // Rank 1 is busy elsewhere for longer than the grace; then it does what rank 0 waits for, in both
  // channels.
  Wires wires(2, 1);
  RunRanks(2, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    auto everybody = Everybody(*communicator);
    Outcome bucket;
    int64_t run = 0;
    float value = 1;
    if (rank == 1) ::usleep(1500000);
    EXPECT(everybody->BeginPlan(Plan(1), &run).ok());
    everybody->SubmitBucket(run, 0, bucket.Bucket());
    if (rank == 1) ::usleep(1500000);
    EXPECT(everybody->Run(Sum(&value, "loss")).ok());
    EXPECT(bucket.Done(10) && bucket.status.ok());
    everybody->EndPlan(run, [](const Status& ended) { EXPECT(ended.ok(), ended.message()); });
    communicator->Leave(false);
  });
}
