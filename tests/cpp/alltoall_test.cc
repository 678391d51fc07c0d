// How many messages an alltoall between nodes takes, when one inside a node reads from its peers,
// slots with no room for all parts, and an alltoall that fails. contract/alltoall_test.cc has what
// it brings.
#include <functional>

#include "alltoall_parts.h"
#include "check.h"
#include "counted_group.h"
#include "engine_job.h"
#include "inproc_job.h"

namespace {

using namespace smddp;
using smddp_test::AdvanceAll;
using smddp_test::CountedGroup;
using smddp_test::Exchanged;
using smddp_test::InprocJob;
using smddp_test::kParts;
using smddp_test::Name;
using smddp_test::NodeOf;
using smddp_test::Parts;
using smddp_test::PartsOf;
using smddp_test::RunRanks;

// What travelled between nodes.
struct Traffic {
  size_t exchanges = 0, messages = 0, bytes = 0;
};

// One thread plays all ranks.
Traffic TrafficOf(const NodeOf& nodes, const std::vector<size_t>& parts) {
  int size = static_cast<int>(nodes.size());
  InprocJob job(nodes, 1 << 16);
  Selector selector;
  std::vector<std::unique_ptr<Exchanged>> ranks;
  std::vector<std::unique_ptr<Collective>> collectives;
  std::vector<CountedGroup*> owners;
  for (int r = 0; r < size; ++r) {
    std::unique_ptr<PeerGroup>& group = job.resources(r).share_peers;
    if (group != nullptr) {
      auto counted = std::make_unique<CountedGroup>(std::move(group));
      owners.push_back(counted.get());
      group = std::move(counted);
    }
    ranks.push_back(std::make_unique<Exchanged>(parts, DType::kUint8, r));
    collectives.push_back(selector.Make(&job.resources(r), &ranks[r]->request, nullptr));
  }
  bool all = AdvanceAll(collectives);
  for (auto& rank : ranks) EXPECT(all && rank->out == rank->want);
  Traffic traffic;
  for (CountedGroup* group : owners) {
    traffic.exchanges = std::max(traffic.exchanges, group->started);
    for (const auto& sent : group->sent) {
      for (size_t bytes : sent) {
        traffic.messages += bytes > 0;
        traffic.bytes += bytes;
      }
    }
  }
  return traffic;
}

// Whether it reads from peers' memory; bytes(r, p) go from rank r to rank p, inside a node.
bool TakesSingleCopy(int size, const std::function<size_t(int, int)>& bytes) {
  InprocJob job(size, 1, 1 << 16, true);
  Request request;
  request.kind = Kind::kAlltoall;
  request.dtype = DType::kUint8;
  for (int r = 0; r < size; ++r) {
    for (int p = 0; p < size; ++p) request.part_bytes.push_back(bytes(r, p));
  }
  std::unique_ptr<char[]> memory(new char[request.moved_bytes()]);  // never touched
  request.tensors = {{memory.get(), memory.get(), {0}}};
  std::string why;
  Selector().Make(&job.resources(0), &request, &why);
  return why.find("single_copy_alltoall: taken") != std::string::npos;
}

}  // namespace

// A slot of 64 bytes has less than 8 for each part of an owner, so the parts take turns.
TEST(AnAlltoallOfMorePartsThanFitASlot) {
  for (const NodeOf& nodes :
       {NodeOf{0, 1, 1, 1, 1, 2, 2, 2, 2}, NodeOf{0, 0, 0, 0, 0, 1, 1, 1, 1, 1}, NodeOf{0, 1, 2}}) {
    InprocJob job(nodes, 64);
    RunRanks(static_cast<int>(nodes.size()), [&](int self) {
      job.resources(self).piece_bytes = 16;
      for (Parts kind : kParts) {
        Exchanged rank(PartsOf(kind, nodes), DType::kUint8, self);
        Status status = job.Run(self, rank.request);
        ASSERT(status.ok(), status.message() + ": " + Name(nodes, kind));
        ASSERT(rank.out == rank.want, Name(nodes, kind));
      }
    });
  }
}

TEST(AnAlltoallTakesASingleCopyWhereSlotsBurdenARank) {
  constexpr size_t kMiB = 1 << 20;
  auto even = [](size_t bytes) { return [=](int, int) { return bytes; }; };
  auto scatter = [](size_t bytes) { return [=](int r, int) { return r == 0 ? bytes : 0; }; };
  auto gather = [](size_t bytes) { return [=](int, int p) { return p == 0 ? bytes : 0; }; };
  EXPECT(!TakesSingleCopy(2, even(3 * kMiB)), "within the caches");
  EXPECT(TakesSingleCopy(2, even(4 * kMiB)), "beyond them");
  EXPECT(!TakesSingleCopy(3, scatter(2 * kMiB)), "the root copies as much as the kernel would");
  EXPECT(TakesSingleCopy(4, scatter(2 * kMiB)), "the root would copy more");
  EXPECT(!TakesSingleCopy(4, scatter(kMiB / 8)), "small");
  EXPECT(TakesSingleCopy(3, scatter(8 * kMiB)), "beyond the caches the kernel is faster");
  for (int size : {2, 4, 8}) EXPECT(!TakesSingleCopy(size, gather(8 * kMiB)), "the root reads all");
}

TEST(AnAlltoallNeedsFewerMessagesThanPairs) {
  struct Case {
    NodeOf nodes;
    size_t pairs, messages;
  };
  // From each node to each other: k * k pairs of ranks, and k messages; one for each owner.
  for (const Case& one :
       {Case{{0, 0, 1, 1}, 8, 4}, Case{{0, 0, 0, 1, 1, 1}, 18, 6}, Case{{0, 0, 1, 1, 2, 2}, 24, 12},
        Case{{0, 0, 0, 1}, 6, 2}, Case{{0, 0, 0, 0, 1, 1, 1, 1}, 32, 8}}) {
    std::vector<size_t> parts(one.nodes.size() * one.nodes.size(), 1000);
    Traffic traffic = TrafficOf(one.nodes, parts);
    std::string name = Name(one.nodes, Parts::kEven);
    EXPECT_EQ(traffic.messages, one.messages, name);
    EXPECT_EQ(traffic.bytes, 1000 * one.pairs, name);
    EXPECT_EQ(traffic.exchanges, size_t{2}, "header and messages");
  }
}

TEST(ASmallAlltoallTravelsWithItsHeader) {
  // An owner has two parts for the other node.
  for (size_t bytes : {1, 512, 513}) {
    Traffic traffic = TrafficOf({0, 0, 1, 1}, std::vector<size_t>(16, bytes));
    bool fits = 2 * bytes <= HeaderExchange::PayloadBytes(2);
    EXPECT_EQ(traffic.exchanges, size_t{fits ? 1u : 2u}, std::to_string(bytes));
    EXPECT_EQ(traffic.messages, size_t{fits ? 0u : 4u}, std::to_string(bytes));
  }
}

// Rank 2 stands still before it has read the headers. Here nothing arrives before all have called,
// so rank 0 knows of nobody that came.
TEST(AnAlltoallBetweenNodesKnowsWhomItAwaits) {
  InprocJob job(NodeOf{0, 1, 2}, 1 << 16);
  Selector selector;
  std::vector<size_t> parts(9);
  parts[2 * 3 + 0] = parts[0 * 3 + 1] = 5000;  // from 2 to 0, and from 0 to 1
  std::vector<std::unique_ptr<Exchanged>> ranks;
  std::vector<std::unique_ptr<Collective>> collectives;
  for (int r = 0; r < 3; ++r) {
    ranks.push_back(std::make_unique<Exchanged>(parts, DType::kUint8, r));
    collectives.push_back(selector.Make(&job.resources(r), &ranks[r]->request, nullptr));
  }
  for (int i = 0; i < 10; ++i) {
    for (int r = 0; r < 2; ++r) collectives[r]->Advance();
  }
  EXPECT(collectives[0]->Missing() == (std::vector<int>{1, 2}));
  EXPECT(AdvanceAll(collectives));
}

TEST(AnAlltoallThatFailsBetweenNodesFailsOnAllRanks) {
  for (int n : {0, 1, 2, 3}) {  // the header; the first, second and last chunk
    smddp_test::Wires wires(4, 2, 1, n);
    RunRanks(4, [&](int rank) {
      auto communicator = smddp_test::Connect(&wires, rank);
      Exchanged mine(std::vector<size_t>(16, 3000), DType::kUint8, rank);
      Status status = smddp_test::Everybody(*communicator)->Run(mine.request);
      EXPECT(!status.ok(), "exchange " + std::to_string(n));
      EXPECT(status.message().find("the cable is cut") != std::string::npos, status.message());
      communicator->Leave(true);
    });
  }
}
