// Allreduces of GPUs' tensors by NCCL in each node and the host's groups between the nodes.
#include <unistd.h>

#include <deque>
#include <thread>

#include "core/deadline.h"
#include "counted_group.h"
#include "nccl_job.h"

namespace {

using namespace smddp_test;

bool Has(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

constexpr size_t kSmall = 64 << 10;  // eight places of 8 KiB

NcclOptions InNodes(size_t pack_bytes = 64 << 20) {
  NcclOptions options = Nccl(true);
  options.pack_bytes = pack_bytes;
  options.registers = false;
  return options;
}

struct InNodesWires : NcclWires {
  InNodesWires(int size, int nodes, const NcclOptions& options = InNodes())
      : NcclWires(size, nodes, options) {
    for (auto& connection : connections) {
      for (ChannelResources& channel : connection->channels) channel.devices_in_node = true;
    }
  }
};

// All ops in one dtype, on two tensors.
template <typename T>
void ReduceAll(RankSet* set, int rank, const JobShape& shape, DType dtype) {
  bool integer = std::is_integral_v<T>;
  for (ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    if (op == ReduceOp::kAverage && (integer || (shape.size & (shape.size - 1)) != 0)) continue;
    for (size_t count : {1, 1000, 20011}) {
      GpuRequest<T> one(rank, dtype, op, "x");
      auto element = [&](size_t i) { return SmallNumber(rank, i); };
      one.Add(count, count % 2 == 0, element);
      one.Add(3, true, element);
      Status status = set->Run(one.request);
      ASSERT(status.ok(), status.message());
      bool right = true;
      for (size_t i = 0; i < count; ++i) {
        double want = Reduced(op, shape.size, i);
        if (op == ReduceOp::kAverage) want = Reduced(ReduceOp::kSum, shape.size, i) / shape.size;
        right = right && one.At(0, i) == want && (i >= 3 || one.At(1, i) == want);
      }
      EXPECT(right, Case(shape, count, ReduceOpName(op)) + " in " + Info(dtype).name);
    }
  }
}

}  // namespace

TEST(NcclInTheNodesAndTheHostBetween) {
  for (JobShape shape : {JobShape{4, 2}, JobShape{6, 3}, JobShape{2, 2}}) {
    for (size_t pack_bytes : {size_t{64} << 20, kSmall}) {
      Calls scatters("ncclReduceScatter"), gathers("ncclAllGather"), reductions("ncclAllReduce");
      InNodesWires wires(shape.size, shape.nodes, InNodes(pack_bytes));
      RunRanks(shape.size, [&](int rank) {
        auto communicator = Connect(&wires, rank);
        auto everybody = Everybody(*communicator);
        ReduceAll<float>(everybody.get(), rank, shape, DType::kFloat32);
        ReduceAll<double>(everybody.get(), rank, shape, DType::kFloat64);
        ReduceAll<fake_nccl::Half>(everybody.get(), rank, shape, DType::kFloat16);
        ReduceAll<fake_nccl::Bfloat16>(everybody.get(), rank, shape, DType::kBfloat16);
        ReduceAll<int32_t>(everybody.get(), rank, shape, DType::kInt32);
        ReduceAll<uint8_t>(everybody.get(), rank, shape, DType::kUint8);
        communicator->Leave(false);
      });
      bool average = (shape.size & (shape.size - 1)) == 0;
      // Minima and maxima of floats are the host's.
      int requests = 3 * (4 * (average ? 3 : 2) + 2 * 4);
      bool one_piece = pack_bytes > kSmall;
      EXPECT(one_piece ? scatters.count() == shape.size * requests
                       : scatters.count() > 2 * shape.size * requests);
      EXPECT_EQ(gathers.count(), scatters.count());
      EXPECT_EQ(reductions.count(), 0);
    }
  }
}

TEST(WhatGoesBetweenNodesIsTheLeast) {
  constexpr int kRanks = 6, kNodes = 3;
  constexpr size_t kCount = 300000;
  InNodesWires wires(kRanks, kNodes);
  std::vector<CountedGroup*> counted;
  for (auto& connection : wires.connections) {
    ChannelResources& channel = connection->channels[0];
    counted.push_back(new CountedGroup(std::move(channel.share_peers)));
    channel.share_peers.reset(counted.back());
  }
  RunRanks(kRanks, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    auto everybody = Everybody(*communicator);
    auto one = FloatSum(rank, kCount);
    Status status = everybody->Run(one->request);
    EXPECT(status.ok() && one->At(0, kCount - 1) == SumAt(kCount - 1, kRanks), status.message());
    double slice = kCount * sizeof(float) * kNodes / kRanks;
    double least = 2 * slice * (kNodes - 1) / kNodes;
    auto sent = static_cast<double>(counted[static_cast<size_t>(rank)]->bytes);
    EXPECT(sent >= least && sent < 1.05 * least, std::to_string(sent / least));
    communicator->Leave(false);
  });
}

// Eight pieces at a time: all of them before the first exchange, and one more after each.
TEST(PiecesAreReducedWhileOthersAreBetweenNodes) {
  constexpr int kRanks = 4, kPlaces = 8;
  constexpr size_t kCount = 40000;  // of which a place has 1984 at most
  Setting slow("FAKE_CUDA_DELAY", "100"), late("FAKE_NCCL_DELAY", "100");
  InNodesWires wires(kRanks, 2, InNodes(kSmall));
  Calls scatters("ncclReduceScatter"), gathers("ncclAllGather");
  std::atomic<int> waits{0};
  auto wait = [&, waited = false]() mutable {
    if (waited || scatters.count() == 0) return;  // before that the ranks vote and connect
    waited = true;
    Deadline deadline(10);
    while (scatters.count() < kRanks * kPlaces && !deadline.Passed()) ::usleep(200);
    waits += scatters.count() >= kRanks * kPlaces && gathers.count() == 0;
    // Until all have seen that.
    while (waits < kRanks && !deadline.Passed()) ::usleep(200);
  };
  for (auto& connection : wires.connections) {
    ChannelResources& channel = connection->channels[0];
    auto counted = std::make_unique<CountedGroup>(std::move(channel.share_peers));
    counted->before_alltoall = wait;
    channel.share_peers = std::move(counted);
  }
  RunRanks(kRanks, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    auto everybody = Everybody(*communicator);
    auto one = FloatSum(rank, kCount);
    Status status = everybody->Run(one->request);
    ASSERT(status.ok(), status.message());
    bool right = true;
    for (size_t i = 0; i < kCount; ++i) right = right && one->At(0, i) == SumAt(i, kRanks);
    EXPECT(right);
    communicator->Leave(false);
  });
  EXPECT_EQ(waits.load(), kRanks);
  EXPECT_EQ(scatters.count(), kRanks * 21);
  EXPECT_EQ(gathers.count(), scatters.count());
}

TEST(BothChannelsShareTheGroupsOfTheNodes) {
  Setting slow("FAKE_CUDA_DELAY", "100"), late("FAKE_NCCL_DELAY", "100");
  constexpr int kRanks = 4, kRounds = 15;
  InNodesWires wires(kRanks, 2);
  RunRanks(kRanks, [&](int rank) {
    auto communicator = Connect(&wires, rank, 60);
    auto everybody = Everybody(*communicator);
    auto info = Plan(3);
    std::thread gradients([&] {
      for (int round = 0; round < kRounds; ++round) {
        std::atomic<int> done{0};
        std::vector<std::unique_ptr<GpuRequest<float>>> requests;
        int64_t run = 0;
        ASSERT(everybody->BeginPlan(info, &run).ok());
        for (int b = 0; b < 3; ++b) {
          requests.push_back(FloatSum(rank, 3000, ""));
          auto bucket = std::make_unique<Operation>();
          bucket->request = requests.back()->request;
          bucket->done = [&](const Status& status) {
            EXPECT(status.ok(), status.message());
            ++done;
          };
          everybody->SubmitBucket(run, b, std::move(bucket));
        }
        while (done < 3) ::usleep(100);
        for (auto& one : requests) EXPECT_EQ(one->At(0, 2999), SumAt(2999, kRanks));
      }
    });
    for (int round = 0; round < 2 * kRounds; ++round) {
      // What only moves is the host's.
      FloatsOf floats{kKindsOfNccl[round % 5], kRanks, 1500};
      auto one = floats.Make(rank);
      Status status = everybody->Run(one->request);
      EXPECT(status.ok() && floats.IsRight(rank, *one), status.message());
    }
    gradients.join();
    communicator->Leave(false);
  });
}

TEST(NodesOfDifferentSizesAreTheHosts) {
  Calls scatters("ncclReduceScatter"), reductions("ncclAllReduce");
  InNodesWires wires(5, 2);
  RunRanks(5, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    auto everybody = Everybody(*communicator);
    auto one = FloatSum(rank, 3000);
    Status status = everybody->Run(one->request);
    EXPECT(status.ok() && one->At(0, 2999) == SumAt(2999, 5), status.message());
    communicator->Leave(false);
  });
  EXPECT_EQ(scatters.count() + reductions.count(), 0);
}

TEST(AMismatchOrAJoinedRankLeavesTheGroupsOfTheNodesUsable) {
  InNodesWires wires(4, 2);
  RunRanks(4, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    auto everybody = Everybody(*communicator);
    RunMismatched(everybody.get(), rank);
    for (int batch = 0; batch < 2 && (batch == 0 || rank != 3); ++batch) {
      auto one = FloatSum(rank, 5000);
      Status status = everybody->Run(one->request);
      double less = batch == 1 ? static_cast<double>(4999 % 7) + 3 : 0;
      EXPECT(status.ok() && one->At(0, 4999) == SumAt(4999, 4) - less, status.message());
    }
    int last = -1;
    EXPECT(everybody->Join(&last).ok() && last != 3);
    auto one = FloatSum(rank, 5000);
    Status status = everybody->Run(one->request);
    EXPECT(status.ok() && one->At(0, 4999) == SumAt(4999, 4), status.message());
    communicator->Leave(false);
  });
}

namespace {

// The failures of one sum on 4 ranks of 2 nodes.
std::vector<Status> FailOn(double timeout, const std::function<void(RankSet*)>& act) {
  InNodesWires wires(4, 2);
  std::vector<Status> outcomes(4);
  std::vector<std::unique_ptr<GpuRequest<float>>> requests(4);
  RunRanks(4, [&](int rank) {
    auto communicator = Connect(&wires, rank, timeout);
    auto everybody = Everybody(*communicator);
    auto& one = requests[static_cast<size_t>(rank)] = FloatSum(rank, 1000);
    double begin = NowSeconds();
    std::thread later([&] {
      ::usleep(300000);
      if (act) act(everybody.get());
    });
    outcomes[static_cast<size_t>(rank)] = everybody->Run(one->request);
    later.join();
    EXPECT(NowSeconds() - begin < timeout + 5);
    communicator->Leave(true);
  });
  return outcomes;
}

}  // namespace

TEST(WhatFailsInOneNodeFailsInAll) {
  {
    Setting bad("FAKE_NCCL_FAIL", "1");  // in each node the second rank
    for (const Status& status : FailOn(20, {})) {
      EXPECT(Has(status, "unhandled system error"), status.message());
    }
  }
  Setting hang("FAKE_NCCL_HANG", "1");
  for (const Status& status : FailOn(1, {})) {
    EXPECT(status.code() == Code::kTimeout, status.message());
  }
  auto die = [](RankSet* set) { FailSet(set, {Code::kRemote, "rank 9 died"}); };
  for (const Status& status : FailOn(20, die)) {
    EXPECT(Has(status, "rank 9 died"), status.message());
  }
}
