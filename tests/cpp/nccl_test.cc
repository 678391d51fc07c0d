// Allreduces of GPUs' tensors by NCCL: results, what NCCL does not take, and how ranks connect.
// nccl_failure_test.cc has what may go wrong later.
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

double Element(int rank, size_t i) { return static_cast<double>((i + rank) % 3 + 1); }

double Expected(ReduceOp op, int size, size_t i) {
  double result = Element(0, i);
  for (int r = 1; r < size; ++r) {
    double x = Element(r, i);
    if (op == ReduceOp::kMin) {
      result = std::min(result, x);
    } else if (op == ReduceOp::kMax) {
      result = std::max(result, x);
    } else {
      result = op == ReduceOp::kProduct ? result * x : result + x;
    }
  }
  return op == ReduceOp::kAverage ? std::trunc(result / size) : result;
}

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
      auto element = [&](size_t i) { return Element(rank, i); };
      one.Add(count, count % 2 == 0, element);
      one.Add(0, true, element);
      one.Add(3, true, element);
      Status status = job->Run(rank, one.request);
      ASSERT(status.ok(), status.message());
      bool right = true;
      for (size_t i = 0; i < count; ++i) {
        double want = Expected(op, shape.size, i);
        if (op == ReduceOp::kAverage && !integer) {
          want = Expected(ReduceOp::kSum, shape.size, i) / shape.size;
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

// How many requests of ReduceAllDTypes NCCL takes: averages of integers are the host's, and without
// kernels so is all of 16-bit floats but minima and maxima.
int TakenRequests(const JobShape& shape, bool kernels) {
  bool average = (shape.size & (shape.size - 1)) == 0;
  int integer_ops = shape.size == 1 ? 5 : 4, float_ops = average ? 5 : 4;
  int of_one_size = 4 * integer_ops + 2 * float_ops + 2 * (kernels ? float_ops : 2);
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
    EXPECT_EQ(job.group(0)->stats().reductions, static_cast<uint64_t>(requests));
    EXPECT_EQ(job.group(0)->stats().packed, static_cast<uint64_t>(requests));
    EXPECT_EQ(job.group(0)->stats().library, std::string("2.27.7"));
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
    EXPECT_EQ(job.group(0)->stats().reductions, static_cast<uint64_t>(requests));
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
  EXPECT_EQ(job.group(1)->stats().reductions, 4u);
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
  EXPECT_EQ(job.group(0)->stats().reductions, 1u);
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

// ---- packing ------------------------------------------------------------------------------------

TEST(SumsOf16BitFloatsAreMadeInFloat32) {
  for (bool kernels : {true, false}) {  // NCCL packs them; the host takes them
    Calls reductions("ncclAllReduce");
    NcclOptions options = Nccl(true);  // which is no error without kernels
    if (!kernels) options.kernels = nullptr;
    NcclJob job(3, 1, options);
    RunRanks(3, [&](int rank) {
      GpuRequest<fake_nccl::Half> half(rank, DType::kFloat16, ReduceOp::kSum, "half");
      half.Add(1000, true, [&](size_t i) { return rank == 0 ? 2048.0 : 1.0 + i % 2; });
      EXPECT(job.Run(rank, half.request).ok());
      // In float16 2048 + 1 is 2048.
      EXPECT(half.At(0, 0) == 2050 && half.At(0, 999) == 2052, std::to_string(half.At(0, 0)));
      GpuRequest<fake_nccl::Bfloat16> brain(rank, DType::kBfloat16, ReduceOp::kAverage, "brain");
      brain.request.postscale = 3;
      brain.Add(77, false, [&](size_t) { return rank == 0 ? 256.0 : 1.0; });
      EXPECT(job.Run(rank, brain.request).ok());
      EXPECT_EQ(brain.At(0, 76), 258.0);
      GpuRequest<fake_nccl::Half> tiny(rank, DType::kFloat16, ReduceOp::kSum, "tiny");
      tiny.request.prescale = 0x1p-20;  // exact in float32 only
      tiny.Add(10, true, [&](size_t) { return 1024.0 * (rank + 1); });
      EXPECT(job.Run(rank, tiny.request).ok());
      EXPECT_EQ(tiny.At(0, 0), 6 * 0x1p-10);
    });
    EXPECT_EQ(reductions.count(), kernels ? 3 * 3 : 0);
  }
}

TEST(FactorsThatNcclCannotTakeAreThePackers) {
  for (bool kernels : {true, false}) {
    Calls reductions("ncclAllReduce");
    NcclOptions options = Nccl();
    if (!kernels) options.kernels = nullptr;
    NcclJob job(2, 1, options);
    RunRanks(2, [&](int rank) {
      GpuRequest<float> one(rank, DType::kFloat32, ReduceOp::kSum, "x");
      one.request.prescale = 0x1p-130;  // no normal number of float32
      one.Add(10, true, [&](size_t) { return 0x1p120 * (rank + 1); });
      EXPECT(job.Run(rank, one.request).ok());
      EXPECT_EQ(one.At(0, 0), 3 * 0x1p-10);
      // Whose product is a number that float32 has.
      GpuRequest<float> two(rank, DType::kFloat32, ReduceOp::kSum, "y");
      two.request.prescale = 0x1p300;
      two.request.postscale = 0x1p-299;
      two.Add(3, true, [&](size_t) { return rank + 1; });
      two.Add(3, true, [&](size_t) { return rank + 2; });
      EXPECT(job.Run(rank, two.request).ok());
      EXPECT(two.At(0, 2) == 6 && two.At(1, 0) == 10, std::to_string(two.At(0, 2)));
    });
    // Without kernels the host takes the first, and NCCL the second one's tensors one by one.
    EXPECT_EQ(reductions.count(), 2 * 2);
  }
}

TEST(AnyNumberOfTensorsIsOneLaunch) {
  NcclJob job(2, 1);
  Launches packs("smddp_pack_bytes"), unpacks("smddp_unpack_bytes"), kernels("smddp_");
  Calls reductions("ncclAllReduce");
  RunRanks(2, [&](int rank) {
    GpuRequest<float> many(rank, DType::kFloat32, ReduceOp::kSum, "many");
    for (size_t t = 0; t < 700; ++t) {
      many.Add(t % 40, t % 2 == 0, [&](size_t i) { return t * (rank + 1.0) + i; });
    }
    ASSERT(job.Run(rank, many.request).ok());
    bool right = true;
    for (size_t t = 0; t < 700; ++t) {
      for (size_t i = 0; i < t % 40; ++i) right = right && many.At(t, i) == 3.0 * t + 2.0 * i;
    }
    EXPECT(right);
  });
  EXPECT(packs.count() == 2 && unpacks.count() == 2 && kernels.count() == 4);
  EXPECT_EQ(reductions.count(), 2);
}

TEST(ALargeBucketIsPackedInPieces) {
  NcclOptions options = Nccl();
  options.pack_bytes = 4096;
  NcclJob job(2, 1, options);
  Launches packs("smddp_pack_float16"), unpacks("smddp_unpack_float16");
  RunRanks(2, [&](int rank) {
    GpuRequest<fake_nccl::Half> one(rank, DType::kFloat16, ReduceOp::kAverage, "x");
    one.Add(5000, true, [&](size_t i) { return static_cast<double>(i % 50) + rank * 2; });
    one.Add(100, false, [&](size_t i) { return static_cast<double>(i) - rank * 2; });
    ASSERT(job.Run(rank, one.request).ok());
    bool right = true;
    for (size_t i = 0; i < 5000; ++i) {
      right = right && one.At(0, i) == static_cast<double>(i % 50) + 1;
      right = right && (i >= 100 || one.At(1, i) == static_cast<double>(i) - 1);
    }
    EXPECT(right);
  });
  int pieces = 5;  // 5,000 and 100 float32, each to a multiple of 128 bytes, are 20,480
  EXPECT(packs.count() == 2 * pieces && unpacks.count() == 2 * pieces);
}

TEST(ARankWithoutKernelsLeavesAllRanksToDoWithout) {
  static constexpr uint32_t kNoKernels[] = {0};  // for whatever GPU
  for (const void* image :
       {static_cast<const void*>(nullptr), static_cast<const void*>(kNoKernels)}) {
    for (int rank_without : {0, 2}) {
      std::vector<NcclOptions> options(3, Nccl(true));
      options[static_cast<size_t>(rank_without)].kernels = image;
      NcclJob job(3, 1, options);
      Calls reductions("ncclAllReduce");
      Launches kernels("smddp_");
      RunRanks(3, [&](int rank) {
        for (int round = 0; round < 2; ++round) {  // before the ranks connect, and then
          GpuRequest<fake_nccl::Half> half(rank, DType::kFloat16, ReduceOp::kSum, "half");
          half.Add(100, true, [&](size_t) { return rank + 1; });
          Status status = job.Run(rank, half.request);
          EXPECT(status.ok() && half.At(0, 99) == 6, status.message());
          auto floats = FloatSum(rank, 100);
          floats->Add(3, true, [&](size_t) { return rank + 1; });
          status = job.Run(rank, floats->request);
          EXPECT(status.ok() && floats->At(1, 2) == 6, status.message());
        }
      });
      EXPECT_EQ(reductions.count(), 3 * 2 * 2);
      EXPECT_EQ(kernels.count(), 0);
    }
  }
}

TEST(WithoutMemoryToPackTheHostReduces) {
  NcclJob job(2, 1);
  Calls reductions("ncclAllReduce");
  auto run = [&](int tensors) {
    RunRanks(2, [&](int rank) {
      auto one = FloatSum(rank, 100);
      for (int t = 1; t < tensors; ++t) one->Add(9, true, [&](size_t) { return rank; });
      Status status = job.Run(rank, one->request);
      EXPECT(status.ok() && one->At(0, 50) == SumAt(50, 2), status.message());
      EXPECT(tensors == 1 || one->At(1, 8) == 1);
    });
  };
  run(1);
  {
    Setting none("FAKE_CUDA_NO_MEMORY", "1");
    run(2);
  }
  EXPECT_EQ(reductions.count(), 2);
  run(2);
  EXPECT_EQ(reductions.count(), 4);
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
  EXPECT_EQ(job.group(2)->stats().reductions, 60u);
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
