// Alltoall between nodes, aggregated by node or not: every byte at its place whatever the parts and
// the nodes, and how many messages that takes.
#include <random>

#include "check.h"
#include "collective/host/hierarchical_alltoall.h"
#include "counted_group.h"
#include "engine_job.h"
#include "inproc_job.h"

namespace {

using namespace smddp;
using smddp_test::AdvanceAll;
using smddp_test::CountedGroup;
using smddp_test::InprocJob;
using smddp_test::kChunk;
using smddp_test::RunRanks;
using NodeOf = std::vector<int>;

// By rank. Equal nodes, unequal ones, ranks that are dealt out in turns, and a node of one rank.
const NodeOf kNodes[] = {
    {0, 0, 1, 1}, {0, 0, 1},          {0, 0, 0, 1, 1, 1}, {0, 1, 0, 1},
    {0, 1, 2},    {0, 0, 1, 1, 2, 2}, {0, 0, 0, 0, 1, 2}, {0, 1, 1, 0, 1, 2, 1}};

enum class Parts { kTiny, kEven, kEvenChunks, kUneven, kOneLarge, kNear, kNone };
constexpr Parts kParts[] = {Parts::kTiny,     Parts::kEven, Parts::kEvenChunks, Parts::kUneven,
                            Parts::kOneLarge, Parts::kNear, Parts::kNone};

// Elements from rank r to rank p at [r * size + p].
std::vector<size_t> PartsOf(Parts kind, const NodeOf& nodes) {
  std::mt19937 random(static_cast<unsigned>(kind) * 31 + static_cast<unsigned>(nodes.size()));
  size_t n = nodes.size();
  std::vector<size_t> parts(n * n);
  for (size_t r = 0; r < n; ++r) {
    for (size_t p = 0; p < n; ++p) {
      size_t& part = parts[r * n + p];
      bool empty = r == 1 || p == n - 1 || random() % 4 == 0;  // a row, a column, and any
      if (kind == Parts::kTiny) part = 1 + (r + p) % 3;
      if (kind == Parts::kEven) part = 100;
      if (kind == Parts::kEvenChunks) part = 2500;
      if (kind == Parts::kUneven && !empty) part = random() % 1500;
      if (kind == Parts::kOneLarge) part = r == 0 && p == n - 1 ? 9001 : (r + p) % 2;
      if (kind == Parts::kNear && nodes[r] == nodes[p]) part = 3000;
    }
  }
  return parts;
}

// One rank's part in an alltoall: what it sends, and what it has to receive.
struct Exchanged {
  Request request;
  std::vector<char> in, out, want;

  Exchanged(const std::vector<size_t>& parts, DType dtype, size_t self) {
    size_t element = Info(dtype).size, n = 1;
    while (n * n < parts.size()) ++n;
    request.kind = Kind::kAlltoall;
    request.dtype = dtype;
    request.name = "x";
    for (size_t elements : parts) request.part_bytes.push_back(elements * element);
    for (size_t p = 0; p < n; ++p) {
      Append(&in, self, p, request.part_bytes[self * n + p]);
      Append(&want, p, self, request.part_bytes[p * n + self]);
    }
    out.assign(want.size(), '?');
    int64_t count = static_cast<int64_t>(in.size() / element);
    request.tensors = {{in.data(), out.data(), {count}}};
  }

 private:
  static void Append(std::vector<char>* to, size_t from, size_t target, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
      to->push_back(static_cast<char>(i % 251 + from * 31 + target * 7));
    }
  }
};

std::string Name(const NodeOf& nodes, Parts kind) {
  std::string text = "parts " + std::to_string(static_cast<int>(kind)) + ", nodes";
  for (int node : nodes) text += " " + std::to_string(node);
  return text;
}

// What travelled between nodes.
struct Traffic {
  size_t exchanges = 0, messages = 0, bytes = 0;
};

// One thread plays all ranks.
Traffic TrafficOf(const NodeOf& nodes, const std::vector<size_t>& parts, size_t aggregate_bytes) {
  int size = static_cast<int>(nodes.size());
  InprocJob job(nodes, 1 << 16);
  Selector selector;
  selector.alltoall_aggregate_bytes = aggregate_bytes;
  std::vector<std::unique_ptr<Exchanged>> ranks;
  std::vector<std::unique_ptr<Collective>> collectives;
  std::vector<CountedGroup*> all_ranks, owners;
  auto count = [](std::unique_ptr<PeerGroup>* group, std::vector<CountedGroup*>* to) {
    if (*group == nullptr) return;
    auto counted = std::make_unique<CountedGroup>(std::move(*group));
    to->push_back(counted.get());
    *group = std::move(counted);
  };
  for (int r = 0; r < size; ++r) {
    count(&job.resources(r).all_ranks, &all_ranks);
    count(&job.resources(r).share_peers, &owners);
    ranks.push_back(std::make_unique<Exchanged>(parts, DType::kUint8, r));
    collectives.push_back(selector.Make(&job.resources(r), &ranks[r]->request, nullptr));
  }
  bool all = AdvanceAll(collectives);
  for (auto& rank : ranks) EXPECT(all && rank->out == rank->want);
  Traffic traffic;
  auto add = [&](size_t bytes, bool near) {
    traffic.messages += bytes > 0 && !near;
    traffic.bytes += near ? 0 : bytes;
  };
  for (int r = 0; r < size; ++r) {
    for (const auto& sent : all_ranks[r]->sent) {
      for (int p = 0; p < size; ++p) add(sent[p], nodes[p] == nodes[r]);
    }
  }
  for (CountedGroup* group : owners) {
    traffic.exchanges = std::max(traffic.exchanges, group->started);
    for (const auto& sent : group->sent) {
      for (size_t bytes : sent) add(bytes, false);
    }
  }
  return traffic;
}

}  // namespace

TEST(AlltoallOfAnyPartsOnAnyNodes) {
  for (const NodeOf& nodes : kNodes) {
    int size = static_cast<int>(nodes.size());
    InprocJob job(nodes, kChunk, false, 20000);
    for (size_t aggregate : {size_t{0}, SIZE_MAX}) {
      job.alltoall_aggregate_bytes = aggregate;
      RunRanks(size, [&](int self) {
        job.resources(self).piece_bytes = 1000;
        for (DType dtype : {DType::kUint8, DType::kBfloat16, DType::kFloat32, DType::kInt64}) {
          for (Parts kind : kParts) {
            Exchanged rank(PartsOf(kind, nodes), dtype, self);
            Status status = job.Run(self, rank.request);
            ASSERT(status.ok(), status.message() + ": " + Name(nodes, kind));
            ASSERT(rank.out == rank.want, Name(nodes, kind));
          }
        }
      });
    }
  }
}

TEST(AggregatedAlltoallsNeedFewerMessagesOfTheSameBytes) {
  struct Case {
    NodeOf nodes;
    size_t flat, aggregated;
  };
  // From each node to each other: k * k messages, or k; with owners: one for each of those.
  for (const Case& one :
       {Case{{0, 0, 1, 1}, 8, 4}, Case{{0, 0, 0, 1, 1, 1}, 18, 6}, Case{{0, 0, 1, 1, 2, 2}, 24, 12},
        Case{{0, 0, 0, 1}, 6, 2}, Case{{0, 0, 0, 0, 1, 1, 1, 1}, 32, 8}}) {
    std::vector<size_t> parts(one.nodes.size() * one.nodes.size(), 1000);
    Traffic flat = TrafficOf(one.nodes, parts, 0);
    Traffic aggregated = TrafficOf(one.nodes, parts, SIZE_MAX);
    std::string name = Name(one.nodes, Parts::kEven);
    EXPECT_EQ(flat.messages, one.flat, name);
    EXPECT_EQ(aggregated.messages, one.aggregated, name);
    EXPECT_EQ(flat.bytes, 1000 * one.flat, name);
    EXPECT_EQ(aggregated.bytes, flat.bytes, name);
    EXPECT_EQ(aggregated.exchanges, size_t{2}, "header and messages");
  }
}

TEST(ASmallAlltoallTravelsWithItsHeader) {
  // An owner has two parts for the other node.
  for (size_t bytes : {1, 512, 513}) {
    Traffic traffic = TrafficOf({0, 0, 1, 1}, std::vector<size_t>(16, bytes), SIZE_MAX);
    bool fits = 2 * bytes <= HeaderExchange::PayloadBytes(2);
    EXPECT_EQ(traffic.exchanges, size_t{fits ? 1u : 2u}, std::to_string(bytes));
    EXPECT_EQ(traffic.messages, size_t{fits ? 0u : 4u}, std::to_string(bytes));
  }
}

// The mean is over what is sent: a few large parts among many empty ones are not small.
TEST(TheMeanPartChoosesTheAlltoall) {
  Selector selector;
  Request request;
  request.kind = Kind::kAlltoall;
  auto chosen = [&](const NodeOf& nodes, std::vector<size_t> parts, size_t chunk = 1 << 16) {
    InprocJob job(nodes, chunk);
    request.part_bytes = std::move(parts);
    request.tensors = {{nullptr, nullptr, {0}}};
    std::string why;
    selector.Make(&job.resources(0), &request, &why);
    return why.substr(why.rfind('\n', why.size() - 2) + 1);
  };
  size_t limit = selector.alltoall_aggregate_bytes;
  std::vector<size_t> sparse(16);
  sparse[2] = sparse[12] = limit;
  EXPECT_EQ(chosen({0, 0, 1, 1}, std::vector<size_t>(16, limit - 1)),
            std::string("hierarchical_alltoall: taken\n"));
  EXPECT_EQ(chosen({0, 0, 1, 1}, std::vector<size_t>(16, limit)),
            std::string("cross_node_alltoall: taken\n"));
  EXPECT_EQ(chosen({0, 0, 1, 1}, sparse), std::string("cross_node_alltoall: taken\n"));
  EXPECT_EQ(chosen({0, 0, 1, 1}, std::vector<size_t>(16)),
            std::string("hierarchical_alltoall: taken\n"));
  EXPECT_EQ(chosen({0, 1, 2}, std::vector<size_t>(9, 1)),
            std::string("cross_node_alltoall: taken\n"), "every node has a single rank");
  EXPECT_EQ(chosen({0, 0, 0, 0, 0, 1, 1, 1, 1, 1}, std::vector<size_t>(100, 1), 64),
            std::string("cross_node_alltoall: taken\n"), "a slot has 7 bytes for a part");
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
