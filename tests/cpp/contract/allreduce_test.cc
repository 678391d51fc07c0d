// The contract of allreduce: all sizes of job and payload, on one node and on several, with data
// that differ by rank and sum exactly.
#include <cstring>
#include <limits>

#include "allreduce_values.h"
#include "check.h"
#include "contract_job.h"
#include "core/ranges.h"

namespace {

using namespace smddp;
using smddp_test::Case;
using smddp_test::ContractJob;
using smddp_test::Expected;
using smddp_test::Input;
using smddp_test::Jobs;
using smddp_test::kChunk;
using smddp_test::RunRanks;
using smddp_test::TypeOf;
using Shape = smddp_test::JobShape;

// 0, 1, around the number of ranks, and several chunks with an uneven end.
std::vector<size_t> Counts(int size) {
  size_t n = static_cast<size_t>(size);
  return {0, 1, n - 1, n, n + 1, 1000, 3 * kChunk / 4 + 1, 20011};
}

// The payload in three tensors, one of them empty, in place or not.
template <typename T>
void CheckAllreduce(const Shape& shape, ReduceOp op, const std::string& forced, bool in_place) {
  ContractJob job(shape.size, shape.nodes, kChunk);
  RunRanks(shape.size, [&](int rank) {
    for (size_t count : Counts(shape.size)) {
      std::vector<T> in(count), out(count, T(99));
      for (size_t i = 0; i < count; ++i) in[i] = Input<T>(rank, i);
      T* to = in_place ? in.data() : out.data();
      size_t first = count / 3;
      Request request;
      request.dtype = TypeOf<T>::value;
      request.op = op;
      request.name = "x";
      request.tensors = {
          {in.data(), to, {static_cast<int64_t>(first)}},
          {in.data(), to, {0}},
          {in.data() + first, to + first, {static_cast<int64_t>(count - first)}},
      };
      Status status = job.Run(rank, request, forced);
      ASSERT(status.ok(), status.message());
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(to[i], (Expected<T>(op, shape.size, i)), Case(shape, count, ReduceOpName(op)));
      }
    }
  });
}

// Averages of numbers near the dtype's limit, times 3 / 4; kBelow keeps sums of int64 in int64.
template <typename T>
void CheckScaledAverage(const Shape& shape, Kind kind) {
  constexpr int64_t kBelow = sizeof(T) == 8 ? 32 : 1;
  constexpr int64_t kCount = 2003;
  auto input = [](int rank, size_t i) {
    int64_t size =
        std::numeric_limits<T>::max() / kBelow - (rank * 3 + static_cast<int64_t>(i)) % 5;
    return static_cast<T>(std::is_signed_v<T> && i % 2 == 1 ? -size : size);
  };
  ContractJob job(shape.size, shape.nodes, kChunk);
  RunRanks(shape.size, [&](int rank) {
    Range own{0, kCount};
    if (kind == Kind::kReduceScatter) own = smddp::RowsOf(kCount, shape.size, rank);
    std::vector<T> in(kCount), out(own.size());
    for (size_t i = 0; i < in.size(); ++i) in[i] = input(rank, i);
    Request request;
    request.kind = kind;
    request.dtype = TypeOf<T>::value;
    request.op = ReduceOp::kAverage;
    request.postscale = 0.75;
    request.name = "x";
    request.tensors = {{in.data(), out.data(), {kCount}}};
    Status status = job.Run(rank, request);
    ASSERT(status.ok(), status.message());
    for (size_t i = 0; i < out.size(); ++i) {
      int64_t sum = 0;
      for (int r = 0; r < shape.size; ++r) sum += input(r, own.begin + i);
      ASSERT_EQ(static_cast<int64_t>(out[i]), sum * 3 / (4 * shape.size),
                Case(shape, own.begin + i, KindName(kind)));
    }
  });
}

}  // namespace

TEST(AllreduceSumsEveryDtypeOnEveryJob) {
  for (const Shape& shape : Jobs()) {
    CheckAllreduce<float>(shape, ReduceOp::kSum, "", false);
    CheckAllreduce<double>(shape, ReduceOp::kSum, "", true);
    CheckAllreduce<int32_t>(shape, ReduceOp::kSum, "", true);
    CheckAllreduce<int64_t>(shape, ReduceOp::kSum, "", false);
    CheckAllreduce<uint8_t>(shape, ReduceOp::kSum, "", true);
    CheckAllreduce<int8_t>(shape, ReduceOp::kSum, "", false);
    CheckAllreduce<int16_t>(shape, ReduceOp::kSum, "", true);
  }
}

TEST(AllreduceHasEveryOp) {
  for (const Shape& shape : Jobs()) {
    for (ReduceOp op : {ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      CheckAllreduce<float>(shape, op, "", true);
      CheckAllreduce<int32_t>(shape, op, "", false);
    }
  }
}

TEST(ScaledAveragesOfIntegersAreTruncatedOnce) {
  for (const Shape& shape : Jobs()) {
    for (Kind kind : {Kind::kAllreduce, Kind::kReduceScatter}) {
      CheckScaledAverage<int8_t>(shape, kind);
      CheckScaledAverage<int16_t>(shape, kind);
      CheckScaledAverage<uint8_t>(shape, kind);
      CheckScaledAverage<int32_t>(shape, kind);
      CheckScaledAverage<int64_t>(shape, kind);
    }
  }
}

TEST(AllreduceAlgorithmsCanBeForced) {
  for (const Shape& shape : Jobs()) {
    if (shape.nodes > 1) continue;
    CheckAllreduce<float>(shape, ReduceOp::kSum, "oneshot", true);
    CheckAllreduce<float>(shape, ReduceOp::kSum, "shm", true);
    CheckAllreduce<float>(shape, ReduceOp::kSum, "handback", true);
    CheckAllreduce<int32_t>(shape, ReduceOp::kAverage, "handback", false);
  }
}

TEST(AMismatchIsSeenByAllAndTheLaneGoesOn) {
  for (const Shape& shape : Jobs()) {
    if (shape.size == 1) continue;
    ContractJob job(shape.size, shape.nodes, kChunk);
    RunRanks(shape.size, [&](int rank) {
      for (int round = 0; round < 6; ++round) {
        // In odd rounds the last rank has another shape, by many chunks.
        bool odd_one = round % 2 == 1 && rank == shape.size - 1;
        size_t count = odd_one ? 30000 : 5000;
        std::vector<float> data(count, 1.0f);
        Request request;
        request.op = ReduceOp::kSum;
        request.name = "m";
        request.tensors = {{data.data(), data.data(), {static_cast<int64_t>(count)}}};
        Status status = job.Run(rank, request);
        if (round % 2 == 1) {
          ASSERT_EQ(status.code(), Code::kMismatch, status.message());
          EXPECT(status.message().find("float32 [30000]") != std::string::npos, status.message());
          EXPECT_EQ(data[0], 1.0f);
        } else {
          ASSERT(status.ok(), status.message());
          EXPECT_EQ(data[count - 1], static_cast<float>(shape.size));
        }
      }
    });
  }
}
