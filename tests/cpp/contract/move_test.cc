// The contract of broadcast, allgather and alltoall: all sizes of job and payload, on one node and
// on several, through shared slots and from peer to peer, with data that differ by rank.
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

// Calls check(job, shape) for each shape of job and each way of moving.
template <typename Check>
void ForEachJob(Check&& check) {
  for (const Shape& shape : Jobs()) {
    for (bool reads_peers : {false, true}) {
      if (reads_peers && shape.nodes > 1) continue;
      ContractJob job(shape.size, shape.nodes, kChunk, reads_peers);
      check(&job, shape);
    }
  }
}

int32_t Input(int rank, size_t i) { return static_cast<int32_t>(1000000 * rank + i); }

}  // namespace

TEST(BroadcastBringsTheRootsBytes) {
  ForEachJob([](ContractJob* job, const Shape& shape) {
    RunRanks(shape.size, [&](int rank) {
      for (int root : {0, shape.size - 1}) {
        for (size_t count : {0, 1, 2, 1000, 20011}) {
          for (bool in_place : {false, true}) {
            std::vector<int32_t> in(count), out(count, -1);
            for (size_t i = 0; i < count; ++i) in[i] = Input(rank, i);
            std::vector<int32_t>& result = in_place ? in : out;
            Request request;
            request.kind = Kind::kBroadcast;
            request.dtype = DType::kInt32;
            request.root = root;
            request.tensors = {{in.data(), result.data(), {static_cast<int64_t>(count)}}};
            Status status = job->Run(rank, request);
            ASSERT(status.ok(), status.message());
            for (size_t i = 0; i < count; ++i) {
              ASSERT_EQ(result[i], Input(root, i), Case(shape, count, "broadcast"));
            }
          }
        }
      }
    });
  });
}

// More tensors than go to the kernel at a time, and than fit into a slot of addresses.
TEST(BroadcastTakesManyTensors) {
  ForEachJob([](ContractJob* job, const Shape& shape) {
    for (size_t tensors : {300, 600}) {
      RunRanks(shape.size, [&](int rank) {
        std::vector<std::vector<int32_t>> buffers(tensors);
        Request request;
        request.kind = Kind::kBroadcast;
        request.dtype = DType::kInt32;
        for (size_t t = 0; t < tensors; ++t) {
          buffers[t].assign(t % 7, Input(rank, t));
          int64_t count = static_cast<int64_t>(buffers[t].size());
          request.tensors.push_back({buffers[t].data(), buffers[t].data(), {count}});
        }
        Status status = job->Run(rank, request);
        ASSERT(status.ok(), status.message());
        for (size_t t = 0; t < tensors; ++t) {
          for (int32_t element : buffers[t]) {
            ASSERT_EQ(element, Input(0, t), Case(shape, tensors, "broadcast of tensors"));
          }
        }
      });
    }
  });
}

TEST(AllgatherTakesPartsOfAnySize) {
  ForEachJob([](ContractJob* job, const Shape& shape) {
    RunRanks(shape.size, [&](int rank) {
      for (size_t count : {0, 1, 2, 1000, 20011}) {
        // Rank r brings count + 10 r bytes; rank 1 brings none.
        std::vector<size_t> bytes;
        size_t total = 0;
        for (int r = 0; r < shape.size; ++r) {
          bytes.push_back(r == 1 ? 0 : count + 10 * static_cast<size_t>(r));
          total += bytes.back();
        }
        std::vector<char> in(bytes[rank], static_cast<char>('a' + rank)), out(total, '?');
        Request request;
        request.kind = Kind::kAllgather;
        request.dtype = DType::kUint8;
        request.part_bytes = bytes;
        request.tensors = {{in.data(), out.data(), {static_cast<int64_t>(in.size())}}};
        std::vector<std::vector<char>> apart;
        for (size_t part : bytes) apart.emplace_back(part, '?');
        // Odd ranks want each part elsewhere, and need not tell the others.
        if (rank % 2 == 1) {
          for (auto& part : apart) request.part_outputs.push_back(part.data());
        }
        Status status = job->Run(rank, request);
        ASSERT(status.ok(), status.message());
        const char* next = out.data();
        for (int r = 0; r < shape.size; ++r) {
          const char* part = rank % 2 == 1 ? apart[r].data() : next;
          for (size_t i = 0; i < bytes[r]; ++i) {
            ASSERT_EQ(part[i], static_cast<char>('a' + r), Case(shape, count, "allgather"));
          }
          next += bytes[r];
        }
      }
    });
  });
}

TEST(AlltoallBringsEveryPartToItsRank) {
  ForEachJob([](ContractJob* job, const Shape& shape) {
    size_t n = static_cast<size_t>(shape.size);
    RunRanks(shape.size, [&](int self) {
      for (size_t count : {0, 1, 7, 1500, 20011}) {
        // Rank r sends count + 3 r + p bytes to rank p, and nothing to rank 1.
        std::vector<size_t> matrix(n * n);
        size_t send = 0, recv = 0;
        for (size_t r = 0; r < n; ++r) {
          for (size_t p = 0; p < n; ++p) {
            size_t bytes = p == 1 ? 0 : count + 3 * r + p;
            matrix[r * n + p] = bytes;
            if (static_cast<int>(r) == self) send += bytes;
            if (static_cast<int>(p) == self) recv += bytes;
          }
        }
        std::vector<char> in, out(recv, '?');
        for (size_t p = 0; p < n; ++p) {
          in.insert(in.end(), matrix[self * n + p], static_cast<char>('a' + self * 8 + p));
        }
        Request request;
        request.kind = Kind::kAlltoall;
        request.dtype = DType::kUint8;
        request.part_bytes = matrix;
        request.tensors = {{in.data(), out.data(), {static_cast<int64_t>(send)}}};
        Status status = job->Run(self, request);
        ASSERT(status.ok(), status.message());
        size_t at = 0;
        for (size_t r = 0; r < n; ++r) {
          for (size_t i = 0; i < matrix[r * n + self]; ++i, ++at) {
            ASSERT_EQ(out[at], static_cast<char>('a' + r * 8 + self),
                      Case(shape, count, "alltoall"));
          }
        }
        ASSERT_EQ(at, recv);
      }
    });
  });
}
