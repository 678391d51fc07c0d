// What travels between nodes: cut into pieces, whatever its size, and never seen in a tensor once
// the operation was given up.
#include "check.h"
#include "counted_group.h"
#include "inproc_job.h"

namespace {

using namespace smddp;
using smddp_test::AdvanceAll;
using smddp_test::Case;
using smddp_test::CountedGroup;
using smddp_test::InprocJob;
using smddp_test::kChunk;
using smddp_test::kJobs;
using smddp_test::RunRanks;
using Shape = smddp_test::JobShape;

constexpr Kind kMoves[] = {Kind::kBroadcast, Kind::kAllgather, Kind::kAlltoall};
constexpr Kind kKinds[] = {Kind::kBroadcast, Kind::kAllgather, Kind::kAlltoall, Kind::kAllreduce,
                           Kind::kReduceScatter};

// A rank's part in an operation on `count` bytes, more or less, and its tensors. Parts differ by
// rank, some are empty.
struct Part {
  Request request;
  std::vector<char> in, out, want;

  Part(Kind kind, int size, int self, size_t count) {
    request.kind = kind;
    request.dtype = DType::kUint8;
    request.op = ReduceOp::kSum;
    request.root = size - 1;
    request.name = "x";
    size_t n = static_cast<size_t>(size);
    if (kind == Kind::kAllgather) {
      for (int r = 0; r < size; ++r) request.part_bytes.push_back(PartOf(count, r));
      in = Bytes(self, 0, PartOf(count, self));
      for (int r = 0; r < size; ++r) Append(&want, Bytes(r, 0, PartOf(count, r)));
    } else if (kind == Kind::kAlltoall) {
      for (size_t i = 0; i < n * n; ++i) request.part_bytes.push_back(PairOf(count, size, i));
      for (int p = 0; p < size; ++p) {
        Append(&in, Bytes(self, p, request.part_bytes[self * n + p]));
        Append(&want, Bytes(p, self, request.part_bytes[p * n + self]));
      }
    } else {
      in = Bytes(self, 0, count);
      want = Bytes(request.root, 0, count);
      if (request.reduces()) SumAll(size, count);
      if (kind == Kind::kReduceScatter) {
        size_t each = count / n, odd = count % n, r = static_cast<size_t>(self);
        size_t begin = r * each + std::min(r, odd);
        want = {want.begin() + begin, want.begin() + begin + each + (r < odd)};
      }
    }
    out.assign(want.size(), '?');
    request.tensors = {{in.data(), out.data(), {static_cast<int64_t>(in.size())}}};
  }

 private:
  static size_t PartOf(size_t count, int r) { return r == 1 ? 0 : count / (r % 3 + 1); }
  // From rank i / size to rank i % size.
  static size_t PairOf(size_t count, int size, size_t i) {
    return i % size == 1 ? 0 : count / (i % 4 + 1);
  }
  static std::vector<char> Bytes(int from, int to, size_t count) {
    std::vector<char> bytes(count);
    for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i % 13 + from * 5 + to * 3);
    return bytes;
  }
  static void Append(std::vector<char>* to, const std::vector<char>& bytes) {
    to->insert(to->end(), bytes.begin(), bytes.end());
  }
  void SumAll(int size, size_t count) {
    want.assign(count, 0);
    for (int r = 0; r < size; ++r) {
      std::vector<char> one = Bytes(r, 0, count);
      for (size_t i = 0; i < count; ++i) want[i] = static_cast<char>(want[i] + one[i]);
    }
  }
};

// One thread plays all ranks. `given_up` advances so many times, then ends as after a failure: its
// collective is destroyed, and its tensors are its owner's again.
void GiveUp(const Shape& shape, Kind kind, int given_up, int advances, bool disconnect) {
  InprocJob job(shape.size, shape.nodes, kChunk);
  Selector selector;
  std::vector<std::unique_ptr<Part>> parts;
  std::vector<std::unique_ptr<Collective>> collectives;
  for (int r = 0; r < shape.size; ++r) {
    job.resources(r).piece_bytes = 1000;
    parts.push_back(std::make_unique<Part>(kind, shape.size, r, 20011));
    collectives.push_back(selector.Make(&job.resources(r), &parts[r]->request, nullptr));
  }
  for (int i = 0; i < advances; ++i) {
    for (auto& collective : collectives) collective->Advance();
  }
  collectives[given_up].reset();
  Part& part = *parts[given_up];
  std::vector<char> left = part.out;
  ChannelResources& resources = job.resources(given_up);
  if (disconnect) {
    parts[given_up].reset();
    resources.all_ranks.reset();
    resources.share_peers.reset();
  }
  // The others go on, and so does the transport, whoever calls it.
  for (int i = 0; i < 100; ++i) {
    for (auto& collective : collectives) {
      if (collective != nullptr) collective->Advance();
    }
    for (PeerGroup* group : {resources.all_ranks.get(), resources.share_peers.get()}) {
      bool done = false;
      if (group != nullptr) EXPECT(group->Test(&done).ok());
    }
  }
  if (!disconnect) EXPECT(part.out == left, Case(shape, advances, KindName(kind)));
}

}  // namespace

TEST(WhatWasGivenUpIsNeverWrittenAgain) {
  for (const Shape& shape : {Shape{2, 2}, Shape{4, 2}, Shape{3, 3}}) {
    for (Kind kind : kKinds) {
      for (int given_up : {0, shape.size - 1}) {
        for (int advances : {1, 2, 3, 4, 5, 6, 8, 12}) {
          for (bool disconnect : {false, true}) {
            GiveUp(shape, kind, given_up, advances, disconnect);
          }
        }
      }
    }
  }
}

TEST(PayloadsOverTheLimitOfTheTransportAreCut) {
  constexpr size_t kLimit = 20000;
  for (const Shape& shape : kJobs) {
    if (shape.nodes == 1) continue;
    InprocJob job(shape.size, shape.nodes, kChunk, false, kLimit);
    RunRanks(shape.size, [&](int rank) {
      for (size_t piece : {7, 1000, 20000}) {
        job.resources(rank).piece_bytes = piece;
        size_t many = piece == 20000 ? 3 * kLimit + 7 : 9 * piece + 5;
        for (size_t count : {size_t{0}, size_t{1}, many}) {
          for (Kind kind : kMoves) {
            Part part(kind, shape.size, rank, count);
            Status status = job.Run(rank, part.request);
            ASSERT(status.ok(), status.message());
            ASSERT(part.out == part.want, Case(shape, count, KindName(kind)));
          }
        }
      }
    });
  }
}

TEST(ABroadcastOfWideElementsIsCutBetweenThem) {
  InprocJob job(3, 3, kChunk);
  RunRanks(3, [&](int rank) {
    job.resources(rank).piece_bytes = 100;
    std::vector<double> a(7, rank), b(1000, rank + 10);
    Request request;
    request.kind = Kind::kBroadcast;
    request.dtype = DType::kFloat64;
    request.root = 1;
    request.tensors = {
        {a.data(), a.data(), {7}}, {nullptr, nullptr, {0}}, {b.data(), b.data(), {1000}}};
    Status status = job.Run(rank, request);
    ASSERT(status.ok(), status.message());
    EXPECT(a == std::vector<double>(7, 1) && b == std::vector<double>(1000, 11));
  });
}

namespace {

// One thread plays all ranks in an allreduce. Returns what the owner on rank 0 exchanged.
std::pair<size_t, size_t> ExchangesOf(const Shape& shape, size_t count) {
  InprocJob job(shape.size, shape.nodes, kChunk);
  Selector selector;
  std::vector<std::unique_ptr<Part>> parts;
  std::vector<std::unique_ptr<Collective>> collectives;
  CountedGroup* counted = nullptr;
  for (int r = 0; r < shape.size; ++r) {
    auto& peers = job.resources(r).share_peers;
    if (peers != nullptr) peers = std::make_unique<CountedGroup>(std::move(peers));
    if (r == 0) counted = static_cast<CountedGroup*>(peers.get());
    parts.push_back(std::make_unique<Part>(Kind::kAllreduce, shape.size, r, count));
    collectives.push_back(selector.Make(&job.resources(r), &parts[r]->request, nullptr));
  }
  bool all = AdvanceAll(collectives);
  for (int r = 0; r < shape.size; ++r) {
    EXPECT(all && parts[r]->out == parts[r]->want, Case(shape, count, "allreduce"));
  }
  return {counted->started, counted->most};
}

}  // namespace

TEST(ASmallAllreduceTravelsWithItsHeader) {
  for (const Shape& shape : {Shape{2, 2}, Shape{4, 2}, Shape{5, 2}, Shape{3, 3}}) {
    EXPECT(ExchangesOf(shape, 1).first == 1);
    EXPECT(ExchangesOf(shape, 1000).first == 1);
    EXPECT(ExchangesOf(shape, 3000).first == 3, "header, scatter and gather");
  }
}

TEST(ChunksAreScatteredWhileOthersAreGathered) {
  for (const Shape& shape : {Shape{2, 2}, Shape{4, 2}, Shape{5, 2}, Shape{3, 3}}) {
    auto [started, most] = ExchangesOf(shape, 20 * kChunk);
    EXPECT(started == 1 + 2 * 20);
    EXPECT(most >= 3 && most <= PeerGroup::kDepth, std::to_string(most) + " at once");
  }
}

namespace {

// One thread plays all ranks in operations of every kind, and in one that does not match. Returns
// the messages that the owner on rank 0 has sent with headers.
size_t HeaderMessagesOf(const Shape& shape, int linear_nodes) {
  InprocJob job(shape.size, shape.nodes, kChunk);
  CountedGroup* counted = nullptr;
  for (int r = 0; r < shape.size; ++r) {
    job.resources(r).exchange.linear_nodes = linear_nodes;
    auto& peers = job.resources(r).share_peers;
    if (peers == nullptr) continue;
    auto group = std::make_unique<CountedGroup>(std::move(peers));
    if (r == 0) counted = group.get();
    peers = std::move(group);
  }
  Selector selector;
  size_t first = 0;
  for (bool odd : {false, true, false}) {
    for (Kind kind : kKinds) {
      for (size_t count : {1, 1000}) {
        std::vector<std::unique_ptr<Part>> parts;
        std::vector<std::unique_ptr<Collective>> collectives;
        for (int r = 0; r < shape.size; ++r) {
          parts.push_back(std::make_unique<Part>(kind, shape.size, r, count));
          if (odd && r == shape.size - 1) parts[r]->request.name = "y";
          collectives.push_back(selector.Make(&job.resources(r), &parts[r]->request, nullptr));
        }
        bool all = AdvanceAll(collectives);
        for (int r = 0; r < shape.size; ++r) {
          EXPECT(all && collectives[r]->status().ok() != odd, Case(shape, count, KindName(kind)));
          EXPECT(odd || parts[r]->out == parts[r]->want, Case(shape, count, KindName(kind)));
        }
        // A broadcast's payload takes no message that is counted.
        if (first == 0) first = counted->messages;
      }
    }
  }
  return first;
}

}  // namespace

TEST(ManyNodesDisseminateTheirHeaders) {
  struct Expected {
    Shape shape;
    size_t rounds;
  };
  for (const Expected& one :
       {Expected{{2, 2}, 1}, Expected{{3, 3}, 2}, Expected{{8, 4}, 2}, Expected{{5, 5}, 3},
        Expected{{9, 9}, 4}, Expected{{18, 9}, 4}, Expected{{16, 16}, 4}, Expected{{17, 17}, 5}}) {
    EXPECT_EQ(HeaderMessagesOf(one.shape, 1), one.rounds, Case(one.shape, 1, "broadcast"));
    size_t others = static_cast<size_t>(one.shape.nodes) - 1;
    EXPECT_EQ(HeaderMessagesOf(one.shape, 16), others < 16 ? others : one.rounds);
  }
}

TEST(PayloadsOfManyHeadersAreSmaller) {
  for (int nodes : {2, 16, 64}) EXPECT_EQ(HeaderExchange::PayloadBytes(nodes), size_t{1024});
  EXPECT_EQ(HeaderExchange::PayloadBytes(65), size_t{960});
  EXPECT_EQ(HeaderExchange::PayloadBytes(256), size_t{256});
  for (int nodes : {1024, 100000}) EXPECT_EQ(HeaderExchange::PayloadBytes(nodes), size_t{64});
}
