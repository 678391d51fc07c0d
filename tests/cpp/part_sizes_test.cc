// Parts whose sizes only their own rank knows: the sizes are gathered, checked alike on all ranks,
// and the output is allocated before the collective runs.
#include "engine/part_sizes.h"

#include <unistd.h>

#include <atomic>
#include <numeric>

#include "check.h"
#include "core/deadline.h"
#include "engine_job.h"

namespace {

using namespace smddp_test;

constexpr JobShape kShapes[] = {{1, 1}, {2, 1}, {3, 1}, {4, 2}, {3, 2}};

// One rank's ragged collective of rows of two int32, and how it ended.
struct Exchange {
  std::vector<int32_t> in, out;
  std::vector<int64_t> rows;  // that come from each rank
  Status allocated;           // what allocating returns
  Status status;
  std::atomic<int> times{0};

  void Run(const std::shared_ptr<RankSet>& set, Kind kind, std::vector<int64_t> dims,
           const std::vector<int32_t>& splits = {}) {
    auto operation = std::make_unique<Operation>();
    Request& request = operation->request;
    request.kind = kind;
    request.dtype = DType::kInt32;
    request.name = "x";
    request.tensors = {{in.data(), nullptr, std::move(dims)}};
    operation->done = [this](const Status& result) {
      status = result;
      ++times;
    };
    PostRagged(set, std::move(operation), splits,
               [this](const std::vector<int64_t>& received, void** memory) {
                 rows = received;
                 out.assign(2 * std::accumulate(rows.begin(), rows.end(), size_t{0}), -1);
                 *memory = out.data();
                 return allocated;
               });
    for (Deadline limit(20); times == 0 && !limit.Passed();) ::usleep(200);
    EXPECT_EQ(times.load(), 1);
  }
};

// The rows that rank `from` has for rank `to`: i-th row of 1000 from + 100 to + i, twice.
void Append(int from, int to, int64_t count, std::vector<int32_t>* values) {
  for (int64_t i = 0; i < count; ++i) {
    values->insert(values->end(), 2, 1000 * from + 100 * to + static_cast<int32_t>(i));
  }
}

const PartSizes kJoined(kFirstRowDim + kShownRowDims, 0);

std::string Refusal(Kind kind, const std::vector<PartSizes>& all) {
  std::vector<int> job_ranks;  // as in a process set
  for (size_t r = 0; r < all.size(); ++r) job_ranks.push_back(static_cast<int>(10 * r));
  return CheckPartSizes(kind, all, job_ranks, "x").message();
}

void Contains(const std::string& text, const std::string& part) {
  EXPECT(text.find(part) != std::string::npos, text);
}

}  // namespace

// ---- the sizes ----------------------------------------------------------------------------------

TEST(ARankTellsTheSizesOfItsPart) {
  PartSizes gathered = OwnPartSizes(Kind::kAllgather, {5, 3, 2}, {}, 4);
  EXPECT_EQ(gathered.size(), kFirstRowDim + kShownRowDims);
  EXPECT_EQ(gathered[kNdim], 3);
  EXPECT_EQ(gathered[kRows], 5);
  EXPECT_EQ(gathered[kRowElements], 6);
  EXPECT_EQ(gathered[kFirstRowDim], 3);
  EXPECT_EQ(gathered[kFirstRowDim + 1], 2);
  EXPECT_EQ(gathered[kFirstRowDim + 2], 0);
  PartSizes scalar = OwnPartSizes(Kind::kAllgather, {}, {}, 4);
  EXPECT_EQ(scalar[kNdim], 0);
  EXPECT_EQ(scalar[kRows], 1);
  EXPECT_EQ(scalar[kRowElements], 1);
  auto splits = [](const std::vector<int64_t>& dims, const std::vector<int32_t>& given) {
    PartSizes own = OwnPartSizes(Kind::kAlltoall, dims, given, 2);
    return PartSizes(own.begin() + kGivenSplits, own.end());
  };
  EXPECT(splits({4, 3}, {}) == PartSizes({0, 2, 2}));
  EXPECT(splits({4}, {1, 3}) == PartSizes({2, 1, 3}));
  EXPECT(splits({4}, {1}) == PartSizes({1, 1, 0}));
  EXPECT(splits({4}, {1, 1, 2}) == PartSizes({3, 1, 1}));
}

TEST(PartsAreCountedInBytes) {
  auto gather = [](const std::vector<int64_t>& dims) {
    return OwnPartSizes(Kind::kAllgather, dims, {}, 3);
  };
  std::vector<PartSizes> gathered = {gather({3, 5}), gather({0, 5}), kJoined};
  EXPECT(PartBytes(Kind::kAllgather, gathered, 4) == std::vector<size_t>({60, 0, 0}));
  EXPECT(RowsReceived(Kind::kAllgather, gathered, 1) == std::vector<int64_t>({3, 0, 0}));
  std::vector<PartSizes> exchanged = {OwnPartSizes(Kind::kAlltoall, {3, 5}, {1, 2}, 2),
                                      OwnPartSizes(Kind::kAlltoall, {4, 5}, {}, 2)};
  EXPECT(PartBytes(Kind::kAlltoall, exchanged, 2) == std::vector<size_t>({10, 20, 20, 20}));
  EXPECT(RowsReceived(Kind::kAlltoall, exchanged, 0) == std::vector<int64_t>({1, 2}));
  EXPECT(RowsReceived(Kind::kAlltoall, exchanged, 1) == std::vector<int64_t>({2, 2}));
}

TEST(RowsOfOtherShapesNameBoth) {
  auto gathered = [](const std::vector<std::vector<int64_t>>& shapes) {
    std::vector<PartSizes> all = {kJoined};
    for (auto& dims : shapes) all.push_back(OwnPartSizes(Kind::kAllgather, dims, {}, 3));
    return Refusal(Kind::kAllgather, all);
  };
  EXPECT_EQ(gathered({{3, 5}, {0, 5}}), std::string());
  EXPECT_EQ(gathered({{}, {}}), std::string());
  EXPECT_EQ(gathered({{3, 5}, {3, 4}}),
            std::string("Mismatched allgather 'x': rank 10 has a tensor of shape [3, 5], rank 20 "
                        "one of [3, 4]; all dimensions but the first must agree"));
  // As many elements a row.
  Contains(gathered({{1, 2, 3}, {1, 3, 2}}), "rank 10 has a tensor of shape [1, 2, 3], rank 20");
  Contains(gathered({{2, 0, 3}, {2, 3, 0}}), "[2, 0, 3], rank 20 one of [2, 3, 0]");
  Contains(gathered({{2, 1}, {2}}), "[2, 1], rank 20 one of [2]");
  Contains(gathered({{}, {1}}), "[], rank 20 one of [1]");
  // Dimensions that messages do not show are compared too.
  Contains(gathered({{1, 1, 1, 1, 1, 1, 1, 1, 2, 3}, {1, 1, 1, 1, 1, 1, 1, 1, 3, 2}}),
           "1, ... (10 dimensions)");
}

TEST(SplitsThatDoNotFitNameTheRankAndTheRemedy) {
  auto own = [](const std::vector<int64_t>& dims, const std::vector<int32_t>& splits) {
    return OwnPartSizes(Kind::kAlltoall, dims, splits, 2);
  };
  PartSizes good = own({4}, {});
  EXPECT_EQ(Refusal(Kind::kAlltoall, {good, good}), std::string());
  auto second = [&](const PartSizes& sizes) { return Refusal(Kind::kAlltoall, {good, sizes}); };
  Contains(second(PartSizes(good.size(), 0)), "rank 10 has called join()");
  Contains(second(own({}, {})), "rank 10 has a scalar");
  Contains(second(own({4, 1}, {})),
           "Mismatched alltoall 'x': rank 0 has a tensor of shape [4], rank 10 one of [4, 1]");
  Contains(second(own({5}, {})), "rank 10 has 5 rows, which 2 ranks do not divide");
  Contains(second(own({5}, {2, 3, 0})), "rank 10 has 3 splits for 2 ranks; give one for each");
  Contains(second(own({4}, {5, -1})), "rank 10 has a split of -1");
  Contains(second(own({4}, {2, 1})), "rank 10 has splits that sum to 3 for 4 rows");
}

// ---- the collectives ----------------------------------------------------------------------------

TEST(RaggedPartsAreGathered) {
  for (const JobShape& shape : kShapes) {
    Wires wires(shape.size, shape.nodes);
    RunRanks(shape.size, [&](int rank) {
      auto communicator = Connect(&wires, rank);
      auto everybody = Everybody(*communicator);
      for (int64_t each : {0, 1, 700}) {  // 700 rows take several chunks
        Exchange exchange;
        std::vector<int32_t> want;
        Append(rank, 0, rank * each, &exchange.in);
        for (int r = 0; r < shape.size; ++r) Append(r, 0, r * each, &want);
        uint64_t before = everybody->DirectStats().operations;
        exchange.Run(everybody, Kind::kAllgather, {rank * each, 2});
        std::string note = Case(shape, static_cast<size_t>(each), "allgather");
        EXPECT(exchange.status.ok(), note + exchange.status.message());
        EXPECT(exchange.out == want, note);
        for (int r = 0; r < shape.size; ++r) EXPECT_EQ(exchange.rows[r], r * each, note);
        // The sizes and the parts, and nothing else.
        EXPECT_EQ(everybody->DirectStats().operations - before, uint64_t{2}, note);
      }
      communicator->Leave(false);
    });
  }
}

TEST(RaggedPartsAreExchanged) {
  for (const JobShape& shape : kShapes) {
    Wires wires(shape.size, shape.nodes);
    RunRanks(shape.size, [&](int rank) {
      auto communicator = Connect(&wires, rank);
      auto everybody = Everybody(*communicator);
      for (bool even : {false, true}) {
        // Without splits three rows for each rank, with them r + p rows from rank r to rank p.
        auto count = [&](int r, int p) { return even ? 3 : r + p; };
        Exchange exchange;
        std::vector<int32_t> want, splits;
        for (int p = 0; p < shape.size; ++p) {
          Append(rank, p, count(rank, p), &exchange.in);
          Append(p, rank, count(p, rank), &want);
          if (!even) splits.push_back(count(rank, p));
        }
        uint64_t before = everybody->DirectStats().operations;
        int64_t rows = static_cast<int64_t>(exchange.in.size() / 2);
        exchange.Run(everybody, Kind::kAlltoall, {rows, 2}, splits);
        std::string note = Case(shape, exchange.in.size(), even ? "even alltoall" : "alltoall");
        EXPECT(exchange.status.ok(), note + exchange.status.message());
        EXPECT(exchange.out == want, note);
        EXPECT_EQ(everybody->DirectStats().operations - before, uint64_t{2}, note);
      }
      communicator->Leave(false);
    });
  }
}

TEST(ARankThatHasJoinedHasNoRows) {
  Wires wires(3, 1);
  RunRanks(3, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    auto everybody = Everybody(*communicator);
    if (rank != 1) {
      Exchange gathered;
      std::vector<int32_t> want;
      Append(rank, 0, 2, &gathered.in);
      for (int r : {0, 2}) Append(r, 0, 2, &want);
      gathered.Run(everybody, Kind::kAllgather, {2, 2});
      EXPECT(gathered.status.ok(), gathered.status.message());
      EXPECT(gathered.out == want);
      EXPECT(gathered.rows == std::vector<int64_t>({2, 0, 2}));
      Exchange refused;
      refused.in.resize(6);
      refused.Run(everybody, Kind::kAlltoall, {3, 2});
      Contains(refused.status.message(), "rank 1 has called join(), so it has nothing to send");
    }
    int last = -1;
    Status joined = everybody->Join(&last);
    EXPECT(joined.ok(), joined.message());
    communicator->Leave(false);
  });
}

TEST(OneRanksWrongSizesAreAnErrorOnAllAndTheJobGoesOn) {
  Wires wires(3, 1);
  std::vector<std::string> texts(3);
  RunRanks(3, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    auto everybody = Everybody(*communicator);
    Exchange wrong;
    wrong.in.resize(8);
    wrong.Run(everybody, Kind::kAllgather,
              rank == 1 ? std::vector<int64_t>{2, 4} : std::vector<int64_t>{4, 2});
    EXPECT(wrong.status.code() == Code::kMismatch);
    EXPECT(wrong.rows.empty());  // nothing was allocated
    texts[rank] = wrong.status.message();
    float value = 1;
    EXPECT(everybody->Run(Sum(&value, "afterwards")).ok());
    communicator->Leave(false);
  });
  Contains(texts[0], "rank 0 has a tensor of shape [4, 2], rank 1 one of [2, 4]");
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]);
}

TEST(AnOutputThatCannotBeAllocatedEndsTheCollective) {
  Wires wires(2, 1);
  RunRanks(2, [&](int rank) {
    auto communicator = Connect(&wires, rank);
    auto everybody = Everybody(*communicator);
    Exchange exchange;
    exchange.in.resize(2);
    exchange.allocated = {Code::kSystem, "no memory"};
    exchange.Run(everybody, Kind::kAllgather, {1, 2});
    EXPECT_EQ(exchange.status.message(), std::string("no memory"));
    EXPECT(everybody->Idle());
    communicator->Leave(false);
  });
}
