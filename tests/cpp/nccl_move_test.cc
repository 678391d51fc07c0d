// What NCCL moves between GPUs without reducing it, in all dtypes.
#include "nccl_job.h"

namespace {

using namespace smddp_test;

constexpr JobShape kMoveJobs[] = {{1, 1}, {2, 1}, {3, 1}, {5, 1}, {4, 2}, {3, 2}};
constexpr size_t kCounts[] = {1, 5, 1000, 20011};

// Element i of a rank's tensor, in the dtype.
template <typename T>
double Element(int rank, size_t tensor, size_t i) {
  auto value = static_cast<double>((i + 3 * static_cast<size_t>(rank) + 5 * tensor) % 50);
  return static_cast<double>(fake_nccl::Value(fake_nccl::To<T>(value)));
}

template <typename T>
void Broadcast(NcclJob* job, int rank, const JobShape& shape, DType dtype, size_t count) {
  int root = static_cast<int>(count + static_cast<size_t>(dtype)) % shape.size;
  GpuRequest<T> one(rank, dtype, ReduceOp::kSum, "x");
  one.request.kind = Kind::kBroadcast;
  one.request.root = root;
  const size_t counts[] = {count, 0, 3};
  for (size_t t = 0; t < 3; ++t) {
    bool in_place = (t + count) % 2 == 0;
    one.Add(counts[t], in_place, [&](size_t i) { return Element<T>(rank, t, i); });
  }
  Status status = job->Run(rank, one.request);
  ASSERT(status.ok(), status.message());
  bool right = true;
  for (size_t t = 0; t < 3; ++t) {
    for (size_t i = 0; i < counts[t]; ++i) {
      right = right && one.At(t, i) == Element<T>(root, t, i);
    }
  }
  EXPECT(right, Case(shape, count, "broadcast") + " in " + Info(dtype).name);
}

// Rank r has `most` elements, or r % 4 * most of them, none at all, or an element more.
size_t Rows(const std::string& shape, int rank, size_t most) {
  if (shape == "equal") return most;
  if (shape == "one more") return most + (rank == 0 ? 1 : 0);
  return static_cast<size_t>(rank % 4) * most;
}

template <typename T>
void Allgather(NcclJob* job, int rank, int size, DType dtype, const std::string& shape,
               size_t most) {
  GpuRequest<T> one(rank, dtype, ReduceOp::kSum, "x");
  one.request.kind = Kind::kAllgather;
  size_t total = 0;
  for (int r = 0; r < size; ++r) {
    one.request.part_bytes.push_back(Rows(shape, r, most) * sizeof(T));
    total += Rows(shape, r, most);
  }
  one.AddWithOutput(Rows(shape, rank, most), total,
                    [&](size_t i) { return Element<T>(rank, 0, i); });
  Status status = job->Run(rank, one.request);
  ASSERT(status.ok(), status.message());
  bool right = true;
  size_t at = 0;
  for (int r = 0; r < size; ++r) {
    for (size_t i = 0; i < Rows(shape, r, most); ++i) {
      right = right && one.At(0, at++) == Element<T>(r, 0, i);
    }
  }
  EXPECT(right, "allgather, " + shape + ", of " + Info(dtype).name);
}

// What a rank sends another: nothing, an element, or many.
size_t Sent(int from, int to, size_t most) {
  int which = (from + 2 * to) % 4;
  return which == 0 ? 0 : which == 1 ? 1 : most + static_cast<size_t>(which * from);
}

template <typename T>
void Alltoall(NcclJob* job, int rank, int size, DType dtype, size_t most) {
  GpuRequest<T> one(rank, dtype, ReduceOp::kSum, "x");
  one.request.kind = Kind::kAlltoall;
  std::vector<double> wanted;
  size_t own = 0;
  for (int from = 0; from < size; ++from) {
    size_t at = 0;
    for (int to = 0; to < size; ++to) {
      size_t count = Sent(from, to, most);
      one.request.part_bytes.push_back(count * sizeof(T));
      for (size_t i = 0; i < count && to == rank; ++i) {
        wanted.push_back(Element<T>(from, 0, at + i));
      }
      at += count;
    }
    if (from == rank) own = at;
  }
  one.AddWithOutput(own, wanted.size(), [&](size_t i) { return Element<T>(rank, 0, i); });
  Status status = job->Run(rank, one.request);
  ASSERT(status.ok(), status.message());
  bool right = true;
  for (size_t i = 0; i < wanted.size(); ++i) right = right && one.At(0, i) == wanted[i];
  EXPECT(right, std::string("alltoall of ") + Info(dtype).name);
}

}  // namespace

TEST(NcclBroadcastsTensorsOfGpus) {
  for (const JobShape& shape : kMoveJobs) {
    Calls broadcasts("ncclBroadcast");
    Launches kernels("smddp_");
    NcclJob job(shape.size, shape.nodes, Nccl(true));
    RunRanks(shape.size, [&](int rank) {
      ForEachDType([&](auto value, DType dtype) {
        for (size_t count : kCounts) Broadcast<decltype(value)>(&job, rank, shape, dtype, count);
      });
    });
    int requests = 11 * static_cast<int>(std::size(kCounts));
    EXPECT_EQ(broadcasts.count(), 2 * requests * shape.size);  // of tensors with elements
    EXPECT_EQ(kernels.count(), 0);
    DeviceGroupStats stats = job.group(0)->stats();
    EXPECT_EQ(stats.collectives, static_cast<uint64_t>(requests));
    constexpr uint64_t kElementBytes = 4 + 8 + 2 + 2 + 1 + 1 + 2 + 2 + 4 + 8 + 1;
    EXPECT_EQ(stats.bytes, kElementBytes * (1 + 5 + 1000 + 20011 + 4 * 3));
    EXPECT_EQ(stats.packed, 0u);
  }
}

TEST(MoreTensorsThanNcclTakesAtOnce) {
  constexpr size_t kTensors = 2500;
  Calls broadcasts("ncclBroadcast");
  NcclJob job(2, 1, Nccl(true));
  RunRanks(2, [&](int rank) {
    GpuRequest<float> many(rank, DType::kFloat32, ReduceOp::kSum, "many");
    many.request.kind = Kind::kBroadcast;
    many.request.root = 1;
    for (size_t t = 0; t < kTensors; ++t) {
      many.Add(1, true, [&](size_t) { return Element<float>(rank, t, 0); });
    }
    Status status = job.Run(rank, many.request);
    ASSERT(status.ok(), status.message());
    bool right = true;
    for (size_t t = 0; t < kTensors; ++t) {
      right = right && many.At(t, 0) == Element<float>(1, t, 0);
    }
    EXPECT(right);
  });
  EXPECT_EQ(broadcasts.count(), static_cast<int>(2 * kTensors));
}

TEST(NcclGathersTensorsOfGpus) {
  for (const JobShape& shape : kMoveJobs) {
    for (const char* parts : {"equal", "one more", "some empty"}) {
      Calls gathers("ncclAllGather"), broadcasts("ncclBroadcast");
      NcclJob job(shape.size, shape.nodes, Nccl(true));
      RunRanks(shape.size, [&](int rank) {
        ForEachDType([&](auto value, DType dtype) {
          for (size_t most : {1, 9001}) {
            Allgather<decltype(value)>(&job, rank, shape.size, dtype, parts, most);
          }
        });
      });
      int requests = 11 * 2, ranks_with_rows = 0;
      for (int r = 0; r < shape.size; ++r) ranks_with_rows += Rows(parts, r, 1) > 0 ? 1 : 0;
      bool equal = shape.size == 1 || parts == std::string("equal");
      if (ranks_with_rows == 0) requests = 0;  // no elements at all
      EXPECT_EQ(gathers.count(), equal ? requests * shape.size : 0);
      EXPECT_EQ(broadcasts.count(), equal ? 0 : requests * ranks_with_rows * shape.size);
      EXPECT_EQ(job.group(0)->stats().collectives, static_cast<uint64_t>(requests));
    }
  }
}

TEST(NcclExchangesTensorsOfGpus) {
  Setting delay("FAKE_CUDA_DELAY", "50"), late("FAKE_NCCL_DELAY", "50");
  for (const JobShape& shape : kMoveJobs) {
    if (shape.size == 1) continue;  // that rank sends itself nothing
    NcclJob job(shape.size, shape.nodes, Nccl(true));
    RunRanks(shape.size, [&](int rank) {
      ForEachDType([&](auto value, DType dtype) {
        for (size_t most : {2, 1000, 9001}) {
          Alltoall<decltype(value)>(&job, rank, shape.size, dtype, most);
        }
      });
    });
    EXPECT_EQ(job.group(0)->stats().collectives, 33u);
  }
}

// Two ranks swap what they have, and the third one has nothing and gets nothing.
TEST(ARankWithNothingToExchange) {
  for (const char* version : {"22304", "23203"}) {
    Setting of("FAKE_NCCL_VERSION", version);
    Calls sends("ncclSend"), receives("ncclRecv");
    NcclJob job(3, 1, Nccl(true));
    RunRanks(3, [&](int rank) {
      for (int round = 0; round < 3; ++round) {
        GpuRequest<float> one(rank == 2 && round == 0 ? 0 : rank, DType::kFloat32, ReduceOp::kSum,
                              "x");
        one.request.kind = Kind::kAlltoall;
        one.request.part_bytes = {0, 40, 0, 40, 0, 0, 0, 0, 0};
        size_t count = rank == 2 ? 0 : 10;
        one.AddWithOutput(count, count, [&](size_t i) { return Element<float>(rank, 0, i); });
        Status status = job.Run(rank, one.request);
        EXPECT(status.ok(), status.message());
        for (size_t i = 0; i < count; ++i) EXPECT_EQ(one.At(0, i), Element<float>(1 - rank, 0, i));
        // By which all ranks connect: the third one knows its GPU only now.
        auto sum = FloatSum(rank, 10);
        status = job.Run(rank, sum->request);
        EXPECT(status.ok() && sum->At(0, 9) == SumAt(9, 3), status.message());
      }
    });
    EXPECT_EQ(job.group(2)->stats().collectives, 3u + 2u);
    EXPECT_EQ(sends.count(), 2 * 2);
    EXPECT_EQ(receives.count(), 2 * 2);
  }
}
