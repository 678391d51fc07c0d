// Allreduces of GPUs' tensors by NCCL: results, what NCCL does not take, and how ranks connect.
// nccl_pack_test.cc has how tensors are packed for it, nccl_failure_test.cc what may go wrong
// later.
#include <algorithm>
#include <cmath>
#include <random>
#include <thread>

#include "nccl_job.h"
#include "transport/nccl/library.h"

namespace {

using namespace smddp_test;

constexpr JobShape kNcclJobs[] = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {4, 2}, {3, 2}};
constexpr size_t kCounts[] = {1, 5, 1000, 20011};

// All ops and sizes in one dtype, each request of three tensors.
template <typename T>
void ReduceAll(NcclJob* job, int rank, const JobShape& shape, DType dtype) {
  bool integer = std::is_integral_v<T>;
  for (ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    // Averages of floats are scaled by 1/size, which is exact for powers of two only.
    if (op == ReduceOp::kAverage && !integer && (shape.size & (shape.size - 1)) != 0) continue;
    for (size_t count : kCounts) {
      GpuRequest<T> one(rank, dtype, op, "x");
      auto element = [&](size_t i) { return SmallNumber(rank, i); };
      one.Add(count, count % 2 == 0, element);
      one.Add(0, true, element);
      one.Add(3, true, element);
      Status status = job->Run(rank, one.request);
      ASSERT(status.ok(), status.message());
      bool right = true;
      for (size_t i = 0; i < count; ++i) {
        double want = Reduced(op, shape.size, i);
        if (op == ReduceOp::kAverage && !integer) {
          want = Reduced(ReduceOp::kSum, shape.size, i) / shape.size;
        }
        right = right && one.At(0, i) == want;
        right = right && (i >= 3 || one.At(2, i) == want);
      }
      EXPECT(right, Case(shape, count, ReduceOpName(op)) + " in " + Info(dtype).name);
    }
  }
}

}  // namespace

TEST(NcclIsDeclaredAsInItsHeader) {
  // nccl.h of 2.18: the layout of the configuration, and the numbers of what is passed.
  EXPECT_EQ(sizeof(NcclConfig), 48u);
  EXPECT_EQ(offsetof(NcclConfig, magic), 8u);
  EXPECT_EQ(offsetof(NcclConfig, blocking), 16u);
  EXPECT_EQ(offsetof(NcclConfig, net_name), 32u);
  EXPECT_EQ(offsetof(NcclConfig, split_share), 40u);
  EXPECT_EQ(sizeof(NcclUniqueId), 128u);
  const int values[] = {kNcclInt8,    kNcclUint8,   kNcclInt32,      kNcclInt64,      kNcclFloat16,
                        kNcclFloat32, kNcclFloat64, kNcclBfloat16,   kNcclSum,        kNcclProduct,
                        kNcclMax,     kNcclMin,     kNcclInProgress, kNcclRemoteError};
  const int header[] = {0, 1, 2, 4, 6, 7, 8, 9, 0, 1, 2, 3, 7, 6};
  EXPECT(std::equal(std::begin(values), std::end(values), std::begin(header)));
}

namespace {

void ReduceAllDTypes(NcclJob* job, const JobShape& shape) {
  RunRanks(shape.size, [&](int rank) {
    ReduceAll<float>(job, rank, shape, DType::kFloat32);
    ReduceAll<double>(job, rank, shape, DType::kFloat64);
    ReduceAll<fake_nccl::Half>(job, rank, shape, DType::kFloat16);
    ReduceAll<fake_nccl::Bfloat16>(job, rank, shape, DType::kBfloat16);
    ReduceAll<int8_t>(job, rank, shape, DType::kInt8);
    ReduceAll<uint8_t>(job, rank, shape, DType::kUint8);
    ReduceAll<int32_t>(job, rank, shape, DType::kInt32);
    ReduceAll<int64_t>(job, rank, shape, DType::kInt64);
  });
}

// How many requests of ReduceAllDTypes NCCL takes: averages of integers, and minima and maxima of
// floats, are the host's, and without kernels so is all of 16-bit floats.
int TakenRequests(const JobShape& shape, bool kernels) {
  bool average = (shape.size & (shape.size - 1)) == 0;
  int integer_ops = shape.size == 1 ? 5 : 4, float_ops = average ? 3 : 2;
  int of_one_size = 4 * integer_ops + 2 * float_ops + 2 * (kernels ? float_ops : 0);
  return of_one_size * static_cast<int>(std::size(kCounts));
}

}  // namespace

TEST(NcclReducesTensorsOfGpus) {
  for (const JobShape& shape : kNcclJobs) {
    Calls reductions("ncclAllReduce"), connections("ncclCommInitRankConfig");
    Launches packs("smddp_pack_"), unpacks("smddp_unpack_");
    NcclJob job(shape.size, shape.nodes);
    ReduceAllDTypes(&job, shape);
    int requests = TakenRequests(shape, true);
    EXPECT_EQ(connections.count(), shape.size);
    // One of each for a request, though it has two tensors with elements.
    EXPECT_EQ(reductions.count(), shape.size * requests);
    EXPECT_EQ(packs.count(), shape.size * requests);
    EXPECT_EQ(unpacks.count(), shape.size * requests);
    EXPECT_EQ(job.group(0)->stats().collectives, static_cast<uint64_t>(requests));
    EXPECT_EQ(job.group(0)->stats().packed, static_cast<uint64_t>(requests));
    EXPECT_EQ(job.group(0)->stats().library, std::string("2.32.3"));
  }
}

TEST(WithoutKernelsNcclReducesTensorsWhereTheyAre) {
  for (const JobShape& shape : {JobShape{2, 1}, JobShape{3, 2}}) {
    Calls reductions("ncclAllReduce");
    Launches kernels("smddp_");
    NcclOptions options = Nccl();
    options.kernels = nullptr;
    NcclJob job(shape.size, shape.nodes, options);
    ReduceAllDTypes(&job, shape);
    int requests = TakenRequests(shape, false);
    EXPECT_EQ(reductions.count(), 2 * shape.size * requests);
    EXPECT_EQ(kernels.count(), 0);
    EXPECT_EQ(job.group(0)->stats().collectives, static_cast<uint64_t>(requests));
    EXPECT_EQ(job.group(0)->stats().packed, 0u);
  }
}

TEST(NcclScalesSums) {
  NcclJob job(2, 2);
  RunRanks(2, [&](int rank) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
      GpuRequest<double> wide(rank, DType::kFloat64, op, "double");
      GpuRequest<float> one(rank, DType::kFloat32, op, "float");
      wide.request.prescale = one.request.prescale = 0.5;
      wide.request.postscale = one.request.postscale = 8;
      wide.Add(100, true, [&](size_t) { return rank + 1; });
      one.Add(100, false, [&](size_t) { return rank + 1; });
      EXPECT(job.Run(rank, wide.request).ok() && job.Run(rank, one.request).ok());
      double want = op == ReduceOp::kSum ? 12 : 6;
      EXPECT(wide.At(0, 99) == want && one.At(0, 0) == want, std::to_string(one.At(0, 0)));
    }
  });
  EXPECT_EQ(job.group(1)->stats().collectives, 4u);
}

TEST(AnAverageOverThreeRanksDiffersByRoundingOnly) {
  NcclJob job(3, 1);
  RunRanks(3, [&](int rank) {
    GpuRequest<float> one(rank, DType::kFloat32, ReduceOp::kAverage, "x");
    one.Add(1000, true, [&](size_t i) { return static_cast<double>(i) + rank; });
    EXPECT(job.Run(rank, one.request).ok());
    // One rounding of 1/3, three of products, two of sums: 6 * 2^-24 of the result at most.
    for (size_t i = 0; i < 1000; ++i) {
      double want = static_cast<double>(i) + 1;
      EXPECT(std::fabs(one.At(0, i) - want) <= 6 * 0x1p-24 * want, std::to_string(i));
    }
  });
  EXPECT_EQ(job.group(0)->stats().collectives, 1u);
}

TEST(WhatNcclDoesNotTakeIsReducedOnTheHost) {
  NcclJob job(2, 1);
  Calls reductions("ncclAllReduce");
  RunRanks(2, [&](int rank) {
    GpuRequest<float> scaled(rank, DType::kFloat32, ReduceOp::kMax, "max");
    scaled.request.postscale = 2;
    scaled.Add(10, true, [&](size_t) { return rank + 1; });
    EXPECT(job.Run(rank, scaled.request).ok() && scaled.At(0, 9) == 4);
    GpuRequest<int32_t> average(rank, DType::kInt32, ReduceOp::kAverage, "average");
    average.Add(10, true, [&](size_t) { return rank + 2; });
    EXPECT(job.Run(rank, average.request).ok() && average.At(0, 0) == 2);
    GpuRequest<float> empty(rank, DType::kFloat32, ReduceOp::kSum, "empty");
    empty.Add(0, true, [](size_t) { return 0; });
    EXPECT(job.Run(rank, empty.request).ok());
  });
  EXPECT_EQ(reductions.count(), 0);
}

TEST(NcclWaitsForTheStreamThatComputesTheInputs) {
  Setting delay("FAKE_CUDA_DELAY", "300"), late("FAKE_NCCL_DELAY", "300");
  NcclJob job(3, 1);
  RunRanks(3, [&](int rank) {
    CudaDevice* gpu = Gpu(rank);
    void* stream = nullptr;
    ASSERT(gpu->NewStream(&stream).ok());
    for (int round = 0; round < 60; ++round) {
      struct Fill {
        float* at;
        float value;
      };
      auto one = FloatSum(rank, 300);
      bool packs = round % 2 == 0;
      if (packs) one->Add(20, false, [&](size_t) { return rank; });
      Fill fill{reinterpret_cast<float*>(FakeBytes(one->request.tensors[0].in)),
                static_cast<float>(round + rank)};
      auto kernel = [](void* argument) {
        auto* run = static_cast<Fill*>(argument);
        std::fill_n(run->at, 300, run->value);
      };
      EXPECT_EQ(FakeLaunch(stream, kernel, &fill), 0);
      ASSERT(gpu->Record(stream, &one->request.ready).ok());
      Status status = job.Run(rank, one->request);
      ASSERT(status.ok(), status.message());
      EXPECT(one->At(0, 0) == 3 * round + 3 && one->At(0, 299) == 3 * round + 3);
      EXPECT(!packs || one->At(1, 19) == 3);
    }
  });
  EXPECT_EQ(job.group(2)->stats().collectives, 60u);
}

// ---- connecting ---------------------------------------------------------------------------------

namespace {

// Runs two sums on two ranks; returns rank 0's status of the first.
Status RunTwice(NcclJob* job, bool same_gpu = false) {
  Status first;
  RunRanks(2, [&](int rank) {
    for (int round = 0; round < 2; ++round) {
      auto one = FloatSum(same_gpu ? 0 : rank, 100);
      auto* values = reinterpret_cast<float*>(FakeBytes(one->request.tensors[0].in));
      std::fill_n(values, 100, static_cast<float>(rank + 1));
      Status status = job->Run(rank, one->request);
      if (rank == 0 && round == 0) first = status;
      if (status.ok()) EXPECT_EQ(one->At(0, 99), 3.0);
      if (!status.ok()) return;  // the engine would end the job
    }
  });
  return first;
}

bool Has(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

}  // namespace

TEST(WithoutNcclTheHostReduces) {
  Setting old("FAKE_NCCL_VERSION", "21705");
  Calls reductions("ncclAllReduce");
  NcclJob automatic(2, 1);
  Status status = RunTwice(&automatic);
  EXPECT(status.ok(), status.message());
  EXPECT_EQ(reductions.count(), 0);

  NcclJob required(2, 1, Nccl(true));
  status = RunTwice(&required);
  EXPECT(Has(status, "is of version 2.17.5 and 2.18 or later is needed"), status.message());

  std::string why;
  EXPECT(NcclLibrary::Open("/nowhere/libnccl.so", "", &why) == nullptr);
  EXPECT(why.find("/nowhere/libnccl.so") != std::string::npos, why);
  EXPECT(NcclLibrary::Open("libm.so.6", "", &why) == nullptr);
  EXPECT(why.find("has no ncclGetVersion") != std::string::npos, why);
}

TEST(CallsOfNcclThatBlockAreNotMade) {
  Setting blocking("NCCL_COMM_BLOCKING", "1");
  NcclGroup group(Nccl());
  std::string why = group.Unavailable(Gpu(0));
  EXPECT(why.find("NCCL_COMM_BLOCKING=1") != std::string::npos, why);
  NcclJob job(2, 1);
  SumOnTwoRanks(&job, 1);
  EXPECT(job.group(0)->state() == DeviceGroup::State::kNew, "it has connected");
  Setting off("NCCL_COMM_BLOCKING", "0");
  EXPECT_EQ(group.Unavailable(Gpu(0)), "");
}

TEST(ARankThatCannotConnectLeavesAllRanksToTheHost) {
  for (const char* variable : {"FAKE_NCCL_FAIL_INIT", "FAKE_NCCL_HANG_INIT"}) {
    Setting bad(variable, "1");
    Calls reductions("ncclAllReduce"), aborts("ncclCommAbort");
    NcclJob automatic(2, 1, Nccl(false, 0.5));
    Status status = RunTwice(&automatic);
    EXPECT(status.ok(), status.message());
    EXPECT_EQ(reductions.count(), 0);
    EXPECT_EQ(aborts.count(), 2);

    NcclJob required(2, 1, Nccl(true, 0.5));
    status = RunTwice(&required);
    EXPECT(Has(status, "SMDDP_NCCL=required, but NCCL cannot connect the ranks"), status.message());
  }
}

TEST(RanksOnOneGpuAreLeftToTheHost) {
  NcclJob automatic(2, 1);
  Calls connections("ncclCommInitRankConfig");
  Status status = RunTwice(&automatic, true);
  EXPECT(status.ok(), status.message());
  EXPECT_EQ(connections.count(), 0);

  NcclJob required(2, 1, Nccl(true));
  status = RunTwice(&required, true);
  EXPECT(Has(status, "rank 0 and rank 1 use the same GPU"), status.message());
}

TEST(ANanIsTheMinimumAndMaximumOfGpusToo) {
  // NCCL leaves it out, so the host takes these.
  NcclJob job(3, 1);
  Calls reductions("ncclAllReduce");
  RunRanks(3, [&](int rank) {
    for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      for (int from = 0; from < 3; ++from) {
        GpuRequest<float> one(rank, DType::kFloat32, op, "x");
        one.Add(5, false, [&](size_t i) { return rank == from && i == 2 ? std::nan("") : rank; });
        Status status = job.Run(rank, one.request);
        ASSERT(status.ok(), status.message());
        EXPECT(std::isnan(one.At(0, 2)) && one.At(0, 3) == (op == ReduceOp::kMin ? 0 : 2));
      }
    }
  });
  EXPECT_EQ(reductions.count(), 0);
}
