// How tensors are packed for NCCL, by the kernels as the fake driver runs them; and what happens
// where some rank has no kernels, or no memory for them.
#include "nccl_job.h"

namespace {

using namespace smddp_test;

}  // namespace

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
  int pieces = 6;  // 5,000 and 100 float32, each to a multiple of 128 bytes: 20,608 bytes
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

// Of the ranks that connect, once and for all.
TEST(WithoutMemoryToPackNcclReducesTensorByTensor) {
  NcclJob job(2, 1);
  Calls reductions("ncclAllReduce");
  auto halves = [&](int rank) {
    GpuRequest<fake_nccl::Half> half(rank, DType::kFloat16, ReduceOp::kSum, "half");
    half.Add(100, true, [&](size_t) { return rank + 1; });
    Status status = job.Run(rank, half.request);
    EXPECT(status.ok() && half.At(0, 99) == 3, status.message());
  };
  {
    Setting none("FAKE_CUDA_NO_MEMORY", "1");
    RunRanks(2, halves);  // on the host
    SumOnTwoRanks(&job, 3);
    RunRanks(2, halves);
  }
  EXPECT_EQ(reductions.count(), 2 * 3);
  SumOnTwoRanks(&job, 3);
  RunRanks(2, halves);
  EXPECT_EQ(reductions.count(), 2 * 6);
  EXPECT_EQ(job.group(0)->stats().packed, 0u);
}

TEST(MemoryThatIsThereWhenTheRanksConnectIsTaken) {
  NcclJob job(2, 1);
  {
    Setting none("FAKE_CUDA_NO_MEMORY", "1");
    RunRanks(2, [&](int rank) {
      GpuRequest<fake_nccl::Half> half(rank, DType::kFloat16, ReduceOp::kSum, "half");
      half.Add(10, true, [&](size_t) { return rank; });
      EXPECT(job.Run(rank, half.request).ok() && half.At(0, 9) == 1);  // on the host
    });
  }
  SumOnTwoRanks(&job, 1);
  Setting none("FAKE_CUDA_NO_MEMORY", "1");
  SumOnTwoRanks(&job, 2);
  EXPECT_EQ(job.group(0)->stats().packed, 1u);
}

TEST(TensOfThousandsOfTensorsAreNotPacked) {
  constexpr size_t kTensors = 33000;
  NcclJob job(2, 1);
  Calls reductions("ncclAllReduce");
  RunRanks(2, [&](int rank) {
    auto floats = FloatSum(rank, kTensors);
    SplitInElements(&floats->request);
    Status status = job.Run(rank, floats->request);
    EXPECT(status.ok() && floats->At(0, kTensors - 1) == SumAt(kTensors - 1, 2), status.message());
    GpuRequest<fake_nccl::Half> half(rank, DType::kFloat16, ReduceOp::kSum, "half");
    half.Add(kTensors, true, [&](size_t i) { return static_cast<double>(i % 5) + rank; });
    SplitInElements(&half.request);
    status = job.Run(rank, half.request);  // on the host
    EXPECT(status.ok() && half.At(0, kTensors - 1) == 2 * ((kTensors - 1) % 5) + 1);
  });
  EXPECT_EQ(job.group(0)->stats().packed, 0u);
  EXPECT_EQ(reductions.count(), 2 * static_cast<int>(kTensors));
}
