// Several collectives of a channel that NCCL runs one after another: they are enqueued ahead, and
// what fails one of them ends all.
#include <unistd.h>

#include <atomic>
#include <deque>
#include <random>
#include <thread>

#include "core/deadline.h"
#include "nccl_job.h"

namespace {

using namespace smddp_test;

bool Has(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

bool WaitFor(const std::function<bool()>& reached, double seconds = 10) {
  Deadline deadline(seconds);
  while (!reached() && !deadline.Passed()) ::usleep(200);
  return reached();
}

// Sums of that many floats, each bucket of some more than the one before; as single elements, or
// else as one tensor, to which each second bucket has another one.
struct Sizes {
  size_t least = 500, more = 10;
  bool single = false;
  bool host = false;  // each second bucket is a minimum, which the host makes
};

// Buckets of one step on one rank.
class Buckets {
 public:
  Buckets(RankSet* set, int rank, int count, const Sizes& sizes = {})
      : set_(set), sizes_(sizes), statuses_(static_cast<size_t>(count)) {
    for (int b = 0; b < count; ++b) {
      requests_.push_back(FloatSum(rank, Elements(b), ""));
      if (sizes_.single) {
        SplitInElements(&requests_.back()->request);
      } else if (b % 2 == 1) {
        requests_.back()->Add(30, false, [rank](size_t) { return rank; });
        if (sizes_.host) requests_.back()->request.op = ReduceOp::kMin;
      }
    }
  }

  // Whose inputs are computed when `after` is reached.
  void Submit(const DevicePoint& after) {
    auto info = Plan(static_cast<int>(requests_.size()));
    int64_t run = 0;
    ASSERT(set_->BeginPlan(info, &run).ok());
    for (int b = 0; b < info->num_buckets; ++b) {
      auto bucket = std::make_unique<Operation>();
      bucket->request = requests_[static_cast<size_t>(b)]->request;
      bucket->request.ready = after;
      bucket->done = [this, b](const Status& status) {
        statuses_[static_cast<size_t>(b)] = status;
        ++done_;
      };
      set_->SubmitBucket(run, b, std::move(bucket));
    }
  }
  int done() const { return done_; }
  bool Wait() {
    return WaitFor([this] { return done_ == static_cast<int>(requests_.size()); }, 30);
  }
  const std::vector<Status>& statuses() const { return statuses_; }
  bool AllAreRight(int size) const {
    bool right = true;
    for (size_t b = 0; b < requests_.size(); ++b) {
      const auto& one = *requests_[b];
      right = right && statuses_[b].ok();
      for (size_t i = 0; i < Elements(static_cast<int>(b)); ++i) {
        right = right && one.At(0, i) == SumAt(i, size);
      }
      bool two = b % 2 == 1 && !sizes_.single;
      right = right && (!two || one.At(1, 29) == size * (size - 1) / 2.0);
    }
    return right;
  }
  double Sample() const { return requests_[0]->At(0, 0) + requests_.back()->At(0, 1); }

 private:
  size_t Elements(int bucket) const {
    return sizes_.least + static_cast<size_t>(bucket) * sizes_.more;
  }
  RankSet* set_;
  const Sizes sizes_;
  std::vector<std::unique_ptr<GpuRequest<float>>> requests_;
  std::vector<Status> statuses_;
  std::atomic<int> done_{0};
};

void Meet(std::atomic<int>* left) {
  --*left;
  EXPECT(WaitFor([left] { return *left <= 0; }, 30));
}

}  // namespace

TEST(BucketsAreEnqueuedWhileOneRuns) {
  constexpr int kBuckets = 4;
  for (JobShape shape : {JobShape{2, 1}, JobShape{3, 3}}) {
    Gate gate;
    NcclWires wires(shape.size, shape.nodes);
    Calls reductions("ncclAllReduce");
    std::atomic<int> left{shape.size};
    RunRanks(shape.size, [&](int rank) {
      auto communicator = Connect(&wires, rank);
      auto everybody = Everybody(*communicator);
      Buckets buckets(everybody.get(), rank, kBuckets);
      buckets.Submit(gate.In(rank));
      // All are voted on, and handed to NCCL, before the first one can begin.
      int wanted = shape.size * kBuckets;
      EXPECT(WaitFor([&] { return reductions.count() == wanted; }), std::to_string(wanted));
      EXPECT_EQ(buckets.done(), 0);
      // So is one of the other channel.
      auto explicit_one = FloatSum(rank, 100);
      std::thread runs([&] {
        Status status = everybody->Run(explicit_one->request);
        EXPECT(status.ok() && explicit_one->At(0, 5) == SumAt(5, shape.size), status.message());
      });
      wanted += shape.size;
      EXPECT(WaitFor([&] { return reductions.count() == wanted; }), std::to_string(wanted));
      EXPECT_EQ(buckets.done(), 0);
      Meet(&left);
      gate.Open();
      EXPECT(buckets.Wait() && buckets.AllAreRight(shape.size));
      runs.join();
      communicator->Leave(false);
    });
  }
}

TEST(NoMoreAreEnqueuedThanTheBound) {
  constexpr int kBuckets = 14, kMost = 9;  // eight, and the one whose turn it is
  Gate gate;
  NcclWires wires(2, 1);
  Calls reductions("ncclAllReduce");
  std::atomic<int> left{2};
  RunRanks(2, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    auto everybody = Everybody(*communicator);
    Buckets buckets(everybody.get(), rank, kBuckets);
    buckets.Submit(gate.In(rank));
    EXPECT(WaitFor([&] { return reductions.count() == 2 * kMost; }));
    ::usleep(100000);
    EXPECT_EQ(reductions.count(), 2 * kMost);
    Meet(&left);
    gate.Open();
    EXPECT(buckets.Wait() && buckets.AllAreRight(2));
    communicator->Leave(false);
  });
  EXPECT_EQ(reductions.count(), 2 * kBuckets);
}

namespace {

// On all ranks all buckets fail; their statuses, by rank. `act` is called on each when NCCL has all
// of them, or else cannot get more.
std::vector<std::vector<Status>> FailBuckets(int size, int nodes, double timeout,
                                             const std::function<void(RankSet*)>& act,
                                             const Sizes& sizes = {}) {
  constexpr int kBuckets = 4;
  Calls aborts("ncclCommAbort"), reductions("ncclAllReduce");
  NcclWires wires(size, nodes);
  std::vector<std::vector<Status>> outcomes(static_cast<size_t>(size));
  std::deque<std::unique_ptr<Buckets>> all(static_cast<size_t>(size));
  std::atomic<int> left{size};
  RunRanks(size, [&](int rank) {
    auto communicator = Connect(&wires, rank, timeout);
    auto everybody = Everybody(*communicator);
    auto& buckets = all[static_cast<size_t>(rank)];
    buckets = std::make_unique<Buckets>(everybody.get(), rank, kBuckets, sizes);
    double begin = NowSeconds();
    buckets->Submit(nullptr);
    if (act) {
      EXPECT(WaitFor([&] { return reductions.count() == size * kBuckets; }));
      Meet(&left);
      act(everybody.get());
    }
    EXPECT(buckets->Wait(), "rank " + std::to_string(rank));
    EXPECT(NowSeconds() - begin < timeout + 5);
    double then = buckets->Sample();
    ::usleep(50000);
    EXPECT_EQ(buckets->Sample(), then, "written after the failure");
    outcomes[static_cast<size_t>(rank)] = buckets->statuses();
    communicator->Leave(true);
  });
  EXPECT_EQ(aborts.count(), size);
  return outcomes;
}

void ExpectAll(const std::vector<std::vector<Status>>& outcomes, const std::string& text) {
  for (const auto& rank : outcomes) {
    for (const Status& status : rank) EXPECT(Has(status, text), status.message());
  }
}

}  // namespace

TEST(ADeathEndsAllThatAreEnqueued) {
  Setting hang("FAKE_NCCL_HANG", "0");
  auto die = [](RankSet* set) { FailSet(set, {Code::kRemote, "rank 9 died"}); };
  ExpectAll(FailBuckets(2, 1, 20, die), "rank 9 died");
  ExpectAll(FailBuckets(3, 3, 20, die), "rank 9 died");
}

TEST(AnErrorOfNcclEndsAllThatAreEnqueued) {
  Setting bad("FAKE_NCCL_FAIL", "1");
  for (int nodes : {1, 3}) {
    // The second time, whatever takes memory waits for the kernels, of which those of the other
    // ranks wait for rank 1.
    Setting waits("FAKE_CUDA_WAITS", nodes == 1 ? "0" : "1");
    auto outcomes = FailBuckets(3, nodes, 20, {});
    ExpectAll(outcomes, "rank 1 failed in gradient bucket 0 of 'tape'");
    ExpectAll(outcomes, "unhandled system error");
  }
}

TEST(TheOldestIsTheOneThatIsLate) {
  Setting hang("FAKE_NCCL_HANG", "1");
  auto outcomes = FailBuckets(2, 1, 1, {});
  ExpectAll(outcomes, "in gradient bucket 0 of 'tape'");
  ExpectAll(outcomes, "SMDDP_TIMEOUT_SECONDS=1");
}

// Whatever takes memory of the GPU, or frees it, waits for the kernels, and these for rank 1.
TEST(LargerBucketsTakeNoMemoryWhileNcclRuns) {
  Setting hang("FAKE_NCCL_HANG", "1"), waits("FAKE_CUDA_WAITS", "1");
  ExpectAll(FailBuckets(2, 1, 1, {}, {500, 40000}), "in gradient bucket 0 of 'tape'");
  ExpectAll(FailBuckets(2, 1, 1, {}, {500, 1000, true}), "in gradient bucket 0 of 'tape'");
  ExpectAll(FailBuckets(2, 1, 1, {}, {500, 40000, false, true}), "in gradient bucket 0 of 'tape'");
}

// Of which there is one at a time for so many tensors.
TEST(TablesOfThousandsOfTensorsWaitForEachOther) {
  Setting slow("FAKE_CUDA_DELAY", "200"), late("FAKE_NCCL_DELAY", "300");
  NcclWires wires(2, 1);
  RunRanks(2, [&](int rank) {
    auto communicator = Connect(&wires, rank, 60);
    auto everybody = Everybody(*communicator);
    for (int round = 0; round < 2; ++round) {
      Buckets buckets(everybody.get(), rank, 8, {1500, 200, true});
      buckets.Submit(nullptr);
      EXPECT(buckets.Wait() && buckets.AllAreRight(2));
    }
    EXPECT(communicator->StatsJson().find("\"nccl_packed\": 16") != std::string::npos,
           communicator->StatsJson());
    communicator->Leave(false);
  });
}

// Steps of several buckets, whose votes and kernels take a while, and explicit collectives beside.
TEST(WhatIsEnqueuedAheadIsRight) {
  Setting slow("FAKE_CUDA_DELAY", "200"), late("FAKE_NCCL_DELAY", "300");
  constexpr int kRounds = 25;
  for (JobShape shape : {JobShape{4, 1}, JobShape{3, 2}}) {
    NcclWires wires(shape.size, shape.nodes);
    RunRanks(shape.size, [&](int rank) {
      auto communicator = Connect(&wires, rank, 60);
      auto everybody = Everybody(*communicator);
      std::mt19937 same(11), own(static_cast<unsigned>(rank));
      std::thread steps([&] {
        for (int round = 0; round < kRounds; ++round) {
          Buckets buckets(everybody.get(), rank, 1 + round % 6);
          buckets.Submit(nullptr);
          EXPECT(buckets.Wait() && buckets.AllAreRight(shape.size));
        }
      });
      for (int round = 0; round < 2 * kRounds; ++round) {
        ::usleep(own() % 1000);
        FloatsOf floats{kKindsOfNccl[same() % std::size(kKindsOfNccl)], shape.size,
                        1 + same() % 5000};
        auto one = floats.Make(rank);
        Status status = everybody->Run(one->request);
        EXPECT(status.ok() && floats.IsRight(rank, *one), status.message());
      }
      steps.join();
      communicator->Leave(false);
    });
  }
}
