// A channel that others look at, or use, at a bad moment: inside MPI, while it waits for its turn,
// or after its set was removed.
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "core/deadline.h"
#include "engine_job.h"

namespace {

using namespace smddp_test;

// Whoever tests an exchange stays inside while the gate is closed.
class StuckGroup : public FailingGroup {
 public:
  StuckGroup(std::unique_ptr<PeerGroup> group, std::atomic<bool>* open)
      : FailingGroup(std::move(group), kNever), open_(open) {}
  Status Test(bool* done) override {
    while (!*open_) ::usleep(500);
    return FailingGroup::Test(done);
  }

 private:
  std::atomic<bool>* open_;
};

// Whether the call returns within two seconds; ends the wait for the gate.
bool EndsSoon(const std::function<void()>& call, std::atomic<bool>* open) {
  std::atomic<bool> over{false};
  std::thread caller([&] {
    call();
    over = true;
  });
  for (Deadline limit(2); !over && !limit.Passed();) ::usleep(1000);
  bool soon = over;
  if (!soon) *open = true;
  caller.join();
  return soon;
}

Request InOrder(float* value) {
  Request request = Sum(value, "one name");
  request.matching = Matching::kSeveralInOrder;
  return request;
}

Request ByName(float* value, const std::string& name) {
  Request request = Sum(value, name);
  request.matching = Matching::kByName;
  return request;
}

}  // namespace

TEST(NeitherABucketNorTheMonitorWaitsForAThreadInsideMpi) {
  Wires wires(4, 2);
  std::atomic<bool> open{false};
  auto& peers = wires.connections[0]->channels[1].share_peers;
  peers = std::make_unique<StuckGroup>(std::move(peers), &open);
  Selector selector;
  FlightRecorder recorder;
  Timeline timeline;
  auto channel = [&](int rank, int index) {
    return std::make_unique<Channel>(std::move(wires.connections[rank]->channels[index]), &selector,
                                     &recorder, &timeline, 0, index == 1,
                                     [](const Status&, bool) {});
  };
  auto direct = channel(0, 0), gradients = channel(0, 1), neighbours = channel(1, 1);
  BucketScheduler runs(gradients.get()), neighbours_runs(neighbours.get());
  float value = 1, neighbours_value = 1;
  auto submit = [](BucketScheduler* to, int bucket, float* of) {
    auto operation = std::make_unique<Operation>();
    operation->request = Sum(of, "");
    operation->done = [](const Status&) {};
    to->Arrive(1, bucket, std::move(operation));
  };
  int64_t run = 0;
  EXPECT(runs.Begin(Plan(2), &run).ok() && neighbours_runs.Begin(Plan(2), &run).ok());
  submit(&neighbours_runs, 0, &neighbours_value);
  neighbours->Pump();
  submit(&runs, 0, &value);
  std::thread inside([&] { gradients->Pump(); });
  ::usleep(100000);
  EXPECT(EndsSoon([&] { submit(&runs, 1, &value); }, &open), "a bucket");
  DeadlockDetector cycles(&wires.connections[0]->topology, wires.connections[0]->shm.get());
  auto look = [&] { static_cast<void>(cycles.Look(0.05, direct.get(), gradients.get())); };
  EXPECT(EndsSoon(look, &open), "cycles");
  std::string what;
  EXPECT(EndsSoon([&] { runs.Inspect(0.05, &what); }, &open), "plans");
  open = true;
  inside.join();
}

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

TEST(AnOperationOfARemovedSetBreaksNothingElse) {
  Wires wires(3, 1);
  RunRanks(3, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    int number = 0;
    Status status = communicator->AddSet({0, 1}, &number);
    ASSERT(status.ok(), status.message());
    std::shared_ptr<RankSet> set = communicator->Find(number, &status);
    status = communicator->RemoveSet(number);
    EXPECT(status.ok(), status.message());
    float value = 1;
    if (set != nullptr) {  // another thread had found it before it was removed
      status = set->Run(Sum(&value, "late"));
      EXPECT(status.code() == Code::kUsage, status.message());
      EXPECT(status.message().find("was removed") != std::string::npos, status.message());
    }
    EXPECT(!communicator->failed());
    status = Everybody(*communicator)->Run(Sum(&value, "all"));
    EXPECT(status.ok(), status.message());
    EXPECT_EQ(value, 3.0f);
    communicator->Leave(!status.ok());
  });
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

TEST(SeveralOperationsOfOneNameAreMatchedInProgramOrder) {
  constexpr int kOperations = 40;
  for (int nodes : {1, 2}) {
    Wires wires(4, nodes);
    RunRanks(4, [&](int rank) {
      auto communicator = Connect(&wires, rank);
      auto everybody = Everybody(*communicator);
      std::vector<float> values(kOperations);
      std::atomic<int> ended{0};
      for (int i = 0; i < kOperations; ++i) {
        // Each rank is late at another one, so that some have many under way.
        if (i % 8 == rank) ::usleep(5000);
        values[i] = static_cast<float>((i + 1) * (rank + 1));
        auto operation = std::make_unique<Operation>();
        operation->request = InOrder(&values[i]);
        operation->done = [&ended](const Status& status) {
          EXPECT(status.ok(), status.message());
          ++ended;
        };
        everybody->Post(std::move(operation));
      }
      for (Deadline limit(30); ended < kOperations && !limit.Passed();) ::usleep(1000);
      ASSERT(ended == kOperations, std::to_string(ended.load()));
      for (int i = 0; i < kOperations; ++i) EXPECT_EQ(values[i], static_cast<float>(10 * (i + 1)));
      // Those that are run one at a time go on in the same order.
      float value = 1;
      EXPECT(everybody->Run(InOrder(&value)).ok());
      EXPECT_EQ(value, 4.0f);
      communicator->Leave(false);
    });
  }
}

TEST(OperationsInProgramOrderThatDifferAreAMismatchOnAllRanks) {
  Wires wires(2, 1);
  RunRanks(2, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    auto everybody = Everybody(*communicator);
    std::vector<float> values{1, 1, 1};
    std::vector<Status> results(2);
    std::atomic<int> ended{0};
    for (int i = 0; i < 2; ++i) {
      auto operation = std::make_unique<Operation>();
      operation->request = InOrder(&values[i]);
      if (i == 0 && rank == 1) operation->request.op = ReduceOp::kMax;
      operation->done = [&, i](const Status& status) {
        results[i] = status;
        ++ended;
      };
      everybody->Post(std::move(operation));
    }
    for (Deadline limit(30); ended < 2 && !limit.Passed();) ::usleep(1000);
    ASSERT(ended == 2, std::to_string(ended.load()));
    EXPECT(results[0].code() == Code::kMismatch, results[0].message());
    EXPECT(results[1].ok(), results[1].message());
    EXPECT_EQ(values[1], 2.0f);
    communicator->Leave(false);
  });
}

TEST(ARankIsToldForWhichNameTheOthersWait) {
  for (int nodes : {1, 2}) {
    Wires wires(4, nodes);
    RunRanks(4, [&](int rank) {
      auto communicator = Connect(&wires, rank);
      auto everybody = Everybody(*communicator);
      std::vector<float> values{1, 1};
      std::atomic<int> ended{0};
      auto post = [&](int i) {
        auto operation = std::make_unique<Operation>();
        operation->request = ByName(&values[i], i == 0 ? "first" : "second");
        operation->done = [&ended](const Status& status) {
          EXPECT(status.ok(), status.message());
          ++ended;
        };
        everybody->Post(std::move(operation));
      };
      bool late = rank == 2;
      if (!late) post(0);
      post(1);
      if (late) {
        auto awaited = [&] { return communicator->IsAwaited(0, "first"); };
        for (Deadline limit(30); !awaited() && !limit.Passed();) ::usleep(1000);
        EXPECT(awaited());
        EXPECT(communicator->IsAwaited(0, nullptr));
        EXPECT(!communicator->IsAwaited(0, "second"));
        post(0);
      }
      for (Deadline limit(30); ended < 2 && !limit.Passed();) ::usleep(1000);
      ASSERT(ended == 2, std::to_string(ended.load()));
      EXPECT(!communicator->IsAwaited(0, nullptr));
      for (float value : values) EXPECT_EQ(value, 4.0f);
      communicator->Leave(false);
    });
  }
}
