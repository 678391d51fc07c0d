// SMDDP_TIMEOUT_SECONDS: how long nothing may move, and not how long an operation may take. What a
// request has instead, and abort.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "core/deadline.h"
#include "engine_job.h"

namespace {

using namespace smddp_test;

constexpr double kTimeout = 1;
// Nodes of one and of two ranks: one of them only sees its neighbour's counters.
constexpr int kRanks = 3;
constexpr size_t kElements = 40 * kChunk / sizeof(float);

// A link that moves an exchange every so many seconds, until it stands still.
struct Link {
  double gap;
  int stops_after;
};

class SlowGroup : public FailingGroup {
 public:
  SlowGroup(std::unique_ptr<PeerGroup> group, const Link& link)
      : FailingGroup(std::move(group), kNever), link_(link) {}
  Status Test(bool* done) override {
    *done = false;
    if (NowSeconds() < next_ || moved_ == link_.stops_after) return {};
    Status status = FailingGroup::Test(done);
    if (!*done) return status;
    next_ = NowSeconds() + link_.gap;
    ++moved_;
    return status;
  }

 private:
  Link link_;
  double next_ = 0;
  int moved_ = 0;
};

struct Ending {
  Status status;
  double seconds = 0;
  float first = 0, last = 0;
};

// What a sum of many chunks comes to, by rank.
std::vector<Ending> SumOver(const Link& link) {
  Wires wires(kRanks, 2);
  for (auto& connection : wires.connections) {
    auto& peers = connection->channels[0].share_peers;
    if (peers != nullptr) peers = std::make_unique<SlowGroup>(std::move(peers), link);
  }
  std::vector<Ending> endings(kRanks);
  RunRanks(kRanks, [&](int rank) {
    auto communicator = Connect(&wires, rank, kTimeout);
    std::vector<float> values(kElements, static_cast<float>(rank + 1));
    double begin = NowSeconds();
    Ending& ending = endings[rank];
    ending.status = Everybody(*communicator)->Run(Sum(values.data(), "x", values.size()));
    ending.seconds = NowSeconds() - begin;
    ending.first = values.front();
    ending.last = values.back();
    communicator->Leave(!ending.status.ok());
  });
  return endings;
}

// The first channel of a rank, without the rest of its engine.
struct OneChannel {
  explicit OneChannel(Connection* connection)
      : channel(std::move(connection->channels[0]), &selector, &recorder, &timeline, 0, false,
                [](const Status&, bool) {}) {}

  Selector selector;
  FlightRecorder recorder;
  Timeline timeline;
  Channel channel;
};

// A job, and who of its ranks comes late to a sum of so many elements.
struct Lateness {
  int ranks, nodes, late;
  size_t elements;
};

// A rank stays away from the others' sum until it hears that the job has failed. What becomes of
// the sum, and of what the late rank calls then.
std::vector<Status> Without(const Lateness& job, double timeout,
                            const std::function<void(Communicator*)>& meanwhile) {
  Wires wires(job.ranks, job.nodes);
  std::vector<Status> outcomes(job.ranks);
  RunRanks(job.ranks, [&](int rank) {
    auto communicator = Connect(&wires, rank, 60);
    std::vector<float> values(job.elements, 1);
    Request sum = Sum(values.data(), "x", job.elements);
    sum.timeout_seconds = timeout;
    if (rank == job.late) meanwhile(communicator.get());
    while (rank == job.late && !communicator->failed()) ::usleep(1000);
    outcomes[rank] = Everybody(*communicator)->Run(std::move(sum));
    communicator->Leave(true);
  });
  return outcomes;
}

// The same of rank 1 of two.
std::vector<Status> Alone(double timeout, const std::function<void(Communicator*)>& meanwhile) {
  return Without({2, 1, 1, 1}, timeout, meanwhile);
}

}  // namespace

TEST(AnOperationMayTakeLongerThanTheTimeoutAsLongAsItMoves) {
  for (const Ending& ending : SumOver({0.04, kNever})) {
    EXPECT(ending.status.ok(), ending.status.message());
    EXPECT(ending.seconds > 3 * kTimeout, std::to_string(ending.seconds));
    EXPECT_EQ(ending.first, 6.0f);
    EXPECT_EQ(ending.last, 6.0f);
  }
}

TEST(AnOperationThatStopsHalfwayEndsTheTimeoutLater) {
  const double moves = 1.5 * kTimeout;
  std::vector<Ending> endings = SumOver({0.05, static_cast<int>(moves / 0.05)});
  for (const Ending& ending : endings) {
    EXPECT(ending.status.code() == Code::kTimeout, ending.status.message());
    // Both nodes wait for each other, and either may be the first to say so.
    EXPECT(ending.status.message().find("over SMDDP_TIMEOUT_SECONDS=1") != std::string::npos,
           ending.status.message());
    EXPECT(ending.seconds > moves + kTimeout, std::to_string(ending.seconds));
    EXPECT(ending.seconds < moves + 2.5 * kTimeout, std::to_string(ending.seconds));
  }
  EXPECT_EQ(endings[0].status.message(), endings[1].status.message());  // of one node
}

TEST(WhatAPeerDoesInAChannelIsProgress) {
  Wires wires(2, 1);
  ChannelCell& peer = wires.connections[1]->shm->channel_cell(1, 0);
  OneChannel job(wires.connections[0].get());
  Channel& channel = job.channel;
  double waited = -1;
  auto inspect = [&](double seconds) {
    channel.Inspect(seconds, [&](Operation* front, const std::vector<int>& missing) {
      waited = front->waited;
      EXPECT(missing == std::vector<int>({1}));
    });
    return waited;
  };
  auto operation = std::make_unique<Operation>();
  float value = 1;
  operation->request = Sum(&value, "x");
  operation->done = [](const Status&) {};
  channel.Enqueue(std::move(operation));
  channel.Pump();
  EXPECT_EQ(inspect(1), 0.0);  // it has begun
  EXPECT_EQ(inspect(1), 1.0);
  channel.Pump();
  EXPECT_EQ(inspect(1), 2.0);
  ++peer.detail_read;  // it is still at work on an earlier operation
  EXPECT_EQ(inspect(1), 0.0);
  EXPECT_EQ(inspect(1), 1.0);
}

TEST(WhoWaitsForItsTurnIsNotHelpedByWhatOthersDo) {
  Wires wires(2, 1);
  ChannelCell& first = wires.connections[0]->shm->channel_cell(0, 0);
  OneChannel job(wires.connections[1].get());
  Channel& channel = job.channel;
  auto operation = std::make_unique<Operation>();
  float value = 1;
  operation->request = Sum(&value, "x");
  operation->request.matching = Matching::kByName;
  operation->done = [](const Status&) {};
  channel.Enqueue(std::move(operation));
  double waited = -1;
  for (int i = 1; i <= 3; ++i) {
    channel.Pump();
    ++first.detail_read;
    channel.Inspect(1, [&](Operation* front, const std::vector<int>&) { waited = front->waited; });
    EXPECT_EQ(waited, static_cast<double>(i));
  }
}

TEST(ARequestMayHaveATimeoutOfItsOwn) {
  const double begin = NowSeconds();
  for (const Status& outcome : Alone(0.5, [](Communicator*) {})) {
    EXPECT(outcome.code() == Code::kTimeout, outcome.message());
    EXPECT(outcome.message().find("for rank 1 in allreduce 'x'") != std::string::npos,
           outcome.message());
    EXPECT(outcome.message().find("over its timeout of 0.5 s") != std::string::npos,
           outcome.message());
  }
  EXPECT(NowSeconds() - begin < 10, std::to_string(NowSeconds() - begin));
}

// Not of one rank on each of three nodes: the groups in this process show no header before all have
// come. tests/pytorch/test_torch_timeouts.py has such a job.
TEST(OnlyTheLateRankIsNamed) {
  const std::vector<std::pair<int, int>> jobs = {{3, 1}, {4, 1}, {3, 2}, {4, 2}, {6, 3}};
  for (auto [ranks, nodes] : jobs) {
    RunRanks(2, [&, ranks = ranks, nodes = nodes](int last) {  // two jobs at once: they wait
      const int late = last ? ranks - 1 : 0;
      for (size_t elements : {size_t{1}, kElements}) {
        const std::string wanted = " for rank " + std::to_string(late) + " in allreduce 'x'";
        const std::vector<Status> outcomes =
            Without({ranks, nodes, late, elements}, 0.2, [](Communicator*) {});
        for (const Status& outcome : outcomes) {
          EXPECT(outcome.message().find(wanted) != std::string::npos,
                 outcome.message() + "; " + std::to_string(ranks) + " ranks on " +
                     std::to_string(nodes) + " nodes, late: " + std::to_string(late));
        }
      }
    });
  }
}

TEST(ARankThatAbortsEndsTheWaitsOfAll) {
  for (const Status& outcome : Alone(0, [](Communicator* one) {
         ::usleep(200000);
         one->Abort("aborted group 0");
       })) {
    EXPECT(outcome.code() == Code::kRemote, outcome.message());
    EXPECT_EQ(outcome.message(), "rank 1 aborted group 0");
  }
}

TEST(WhomAnOperationWaitsForIsToldOnDemand) {
  std::string own, behind;
  Wires wires(2, 1);
  std::atomic<bool> told{false};
  RunRanks(2, [&](int rank) {
    auto communicator = Connect(&wires, rank, 60);
    if (rank == 1) {
      while (!told) ::usleep(1000);
    } else {
      float value = 1;
      std::atomic<bool> done{false};
      auto operation = std::make_unique<Operation>();
      operation->request = Sum(&value, "x");
      operation->done = [&](const Status&) { done = true; };
      Everybody(*communicator)->Post(std::move(operation));
      behind = communicator->WaitsFor(0, "y");
      own = communicator->WaitsFor(0, "x");
      told = true;
      communicator->Abort("has seen enough");
      while (!done) ::usleep(1000);
    }
    communicator->Leave(true);
  });
  EXPECT_EQ(own, "rank 1");
  EXPECT_EQ(behind, "allreduce 'x', which runs first and waits for rank 1");
}
