// The contract of reducescatter: all sizes of job and payload, on one node and on
// several, with data that differ by rank and sum exactly.
#include "core/ranges.h"

#include "check.h"
#include "contract_job.h"

namespace {

using namespace smddp;
using smddp_test::Case;
using smddp_test::ContractJob;
using smddp_test::Jobs;
using smddp_test::kChunk;
using smddp_test::RunRanks;
using Shape = smddp_test::JobShape;

}  // namespace

TEST(RowsAreDividedAndEarlyRanksGetTheOddOnes) {
  for (int64_t rows : {0, 1, 4, 5, 7, 1000}) {
    for (int size : {1, 2, 3, 8}) {
      size_t at = 0, last = SIZE_MAX;
      for (int r = 0; r < size; ++r) {
        Range own = RowsOf(rows, size, r);
        EXPECT_EQ(own.begin, at);
        EXPECT(own.size() <= last);
        at = own.end;
        last = own.size();
      }
      EXPECT_EQ(at, static_cast<size_t>(rows));
      EXPECT(RowsOf(rows, size, 0).size() - last <= 1);
    }
  }
}

TEST(ReduceScatterGivesEachRankItsRows) {
  for (const Shape& shape : Jobs()) {
    ContractJob job(shape.size, shape.nodes, kChunk);
    RunRanks(shape.size, [&](int self) {
      for (int64_t rows : {0, 1, 3, 9, 4099}) {
        // Two tensors, of 1 and of 3 elements a row; element i of rank r is i % 7 + r.
        std::vector<float> a(rows), b(rows * 3);
        for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 7) + self;
        for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i % 7) + self;
        Range own = RowsOf(rows, shape.size, self);
        std::vector<float> out_a(own.size()), out_b(own.size() * 3);
        Request request;
        request.kind = Kind::kReduceScatter;
        request.op = ReduceOp::kSum;
        request.name = "x";
        request.tensors = {{a.data(), out_a.data(), {rows}}, {b.data(), out_b.data(), {rows, 3}}};
        Status status = job.Run(self, request);
        ASSERT(status.ok(), status.message());
        auto want = [&](size_t i) {
          return static_cast<float>((i % 7) * shape.size + shape.size * (shape.size - 1) / 2);
        };
        size_t count = static_cast<size_t>(rows);
        for (size_t i = 0; i < own.size(); ++i) {
          ASSERT_EQ(out_a[i], want(own.begin + i), Case(shape, count, KindName(request.kind)));
        }
        for (size_t i = 0; i < own.size() * 3; ++i) {
          ASSERT_EQ(out_b[i], want(own.begin * 3 + i), Case(shape, count, KindName(request.kind)));
        }
      }
    });
  }
}

TEST(ReduceScatterSumsHalfPrecisionInFloat) {
  for (const Shape& shape : Jobs()) {
    if (shape.size != 3) continue;
    ContractJob job(shape.size, shape.nodes, kChunk);
    RunRanks(3, [&](int self) {
      // bfloat16 256 + 1 + 1: a sum in bfloat16 would lose the ones.
      std::vector<uint16_t> in(3, self == 0 ? 0x4380 : 0x3f80), out(1);
      Request request;
      request.kind = Kind::kReduceScatter;
      request.dtype = DType::kBfloat16;
      request.op = ReduceOp::kSum;
      request.tensors = {{in.data(), out.data(), {3}}};
      Status status = job.Run(self, request);
      ASSERT(status.ok(), status.message());
      EXPECT_EQ(out[0], 0x4381);  // 258
    });
  }
}

TEST(ReduceScatterOfDifferentShapesIsAMismatch) {
  for (const Shape& shape : Jobs()) {
    if (shape.size == 1) continue;
    ContractJob job(shape.size, shape.nodes, kChunk);
    RunRanks(shape.size, [&](int self) {
      std::vector<float> in(100, 1.0f), out(100);
      Request request;
      request.kind = Kind::kReduceScatter;
      request.op = ReduceOp::kSum;
      request.tensors = {{in.data(), out.data(), {self == shape.size - 1 ? 30 : 31}}};
      EXPECT_EQ(job.Run(self, request).code(), Code::kMismatch);
      request.tensors[0].dims = {30};
      Status status = job.Run(self, request);
      EXPECT(status.ok(), status.message());
      EXPECT_EQ(out[0], static_cast<float>(shape.size));
    });
  }
}
