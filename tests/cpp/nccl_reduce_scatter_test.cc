// Reducescatters of GPUs' tensors by NCCL: where the ranks' parts are equal or differ, packed and
// not.
#include <random>

#include "nccl_job.h"

namespace {

using namespace smddp_test;

constexpr JobShape kScatterJobs[] = {{1, 1}, {2, 1}, {5, 1}, {4, 2}, {3, 2}};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};

struct Shape {
  size_t rows, width;
};

// Runs one of such tensors, and checks what this rank gets.
template <typename T>
void Scatter(NcclJob* job, int rank, int size, DType dtype, ReduceOp op,
             const std::vector<Shape>& tensors, double prescale = 1, double postscale = 1) {
  GpuRequest<T> one(rank, dtype, op, "x");
  one.request.kind = Kind::kReduceScatter;
  one.request.prescale = prescale;
  one.request.postscale = postscale;
  auto own = [&](const Shape& shape) {
    return RowsOf(static_cast<int64_t>(shape.rows), size, rank);
  };
  for (const Shape& shape : tensors) {
    one.AddWithOutput(shape.rows * shape.width, own(shape).size() * shape.width,
                      [&](size_t i) { return SmallNumber(rank, i); });
    one.request.tensors.back().dims = {static_cast<int64_t>(shape.rows),
                                       static_cast<int64_t>(shape.width)};
  }
  Status status = job->Run(rank, one.request);
  ASSERT(status.ok(), status.message());
  bool right = true, of_floats = op == ReduceOp::kAverage && !std::is_integral_v<T>;
  for (size_t t = 0; t < tensors.size(); ++t) {
    size_t begin = own(tensors[t]).begin * tensors[t].width;
    for (size_t i = 0; i < own(tensors[t]).size() * tensors[t].width; ++i) {
      double want = of_floats ? Reduced(ReduceOp::kSum, size, begin + i) / size
                              : Reduced(op, size, begin + i);
      right = right && one.At(t, i) == want * prescale * postscale;
    }
  }
  EXPECT(right, std::string(ReduceOpName(op)) + " in " + Info(dtype).name + ", " +
                    std::to_string(tensors[0].rows) + " rows");
}

// In all dtypes and ops, of parts that are equal, differ by a row, or are empty.
void ScatterEverything(NcclJob* job, int rank, int size) {
  size_t ranks = static_cast<size_t>(size);
  ForEachDType([&](auto value, DType dtype) {
    using T = decltype(value);
    if (Info(dtype).accum_size == 0) return;
    for (ReduceOp op : kOps) {
      // Averages of floats are scaled by 1/size, which is exact for powers of two only.
      bool exact = std::is_integral_v<T> || (size & (size - 1)) == 0;
      if (op == ReduceOp::kAverage && !exact) continue;
      for (size_t rows : {ranks * 40, ranks * 40 + 1, size_t{1}, size_t{5001}}) {
        Scatter<T>(job, rank, size, dtype, op, {{rows, 5}});
      }
      Scatter<T>(job, rank, size, dtype, op, {{7, 3}, {0, 4}, {ranks * 2, 33}, {1, 1}});
    }
  });
}

}  // namespace

TEST(NcclScattersReductionsOfGpusTensors) {
  for (bool kernels : {true, false}) {
    for (const JobShape& shape : kScatterJobs) {
      NcclOptions options = Nccl();
      if (!kernels) options.kernels = nullptr;
      NcclJob job(shape.size, shape.nodes, options);
      RunRanks(shape.size, [&](int rank) { ScatterEverything(&job, rank, shape.size); });
      // As for allreduces: averages of integers, and minima and maxima of floats, are the host's,
      // and without kernels so is all of 16-bit floats.
      bool average = (shape.size & (shape.size - 1)) == 0;
      int integers = shape.size == 1 ? 5 : 4, floats = average ? 3 : 2;
      int of_each = 4 * integers + 2 * floats + 2 * (kernels ? floats : 0);
      DeviceGroupStats stats = job.group(0)->stats();
      EXPECT_EQ(stats.collectives, static_cast<uint64_t>(5 * of_each));
      // Several tensors, and 16-bit floats.
      int packed = kernels ? of_each + 4 * 2 * floats : 0;
      EXPECT_EQ(stats.packed, static_cast<uint64_t>(packed));
    }
  }
}

TEST(WhichCallsAReducescatterIs) {
  struct {
    std::vector<Shape> tensors;
    bool kernels;
    int scatters, reductions;  // of each rank
  } const cases[] = {
      {{{6, 5}}, true, 1, 0},          // equal parts
      {{{7, 5}}, true, 0, 3},          // parts that differ
      {{{2, 5}}, true, 0, 2},          // one of them empty
      {{{7, 5}, {6, 2}}, true, 1, 0},  // packed
      {{{7, 5}, {6, 2}}, false, 1, 3},
  };
  for (const auto& one : cases) {
    Calls scatters("ncclReduceScatter"), reductions("ncclReduce");
    NcclOptions options = Nccl();
    if (!one.kernels) options.kernels = nullptr;
    NcclJob job(3, 1, options);
    RunRanks(3, [&](int rank) {
      Scatter<float>(&job, rank, 3, DType::kFloat32, ReduceOp::kSum, one.tensors);
    });
    EXPECT_EQ(scatters.count(), 3 * one.scatters);
    EXPECT_EQ(reductions.count(), 3 * one.reductions);
  }
}

TEST(NcclScalesReducescatters) {
  for (bool kernels : {true, false}) {
    NcclOptions options = Nccl();
    if (!kernels) options.kernels = nullptr;
    NcclJob job(2, 2, options);
    RunRanks(2, [&](int rank) {
      for (const auto& tensors : {std::vector<Shape>{{5, 3}}, {{4, 3}}, {{5, 3}, {8, 2}}}) {
        for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
          Scatter<double>(&job, rank, 2, DType::kFloat64, op, tensors, 0.5, 8);
          Scatter<float>(&job, rank, 2, DType::kFloat32, op, tensors, 0.5, 8);
          Scatter<fake_nccl::Half>(&job, rank, 2, DType::kFloat16, op, tensors, 4, 0.5);
        }
      }
    });
    EXPECT_EQ(job.group(0)->stats().collectives, kernels ? 18u : 12u);
  }
}

TEST(ReducescattersOfAnyTensorsArePackedInPieces) {
  for (const JobShape& shape : {JobShape{3, 1}, JobShape{4, 2}, JobShape{5, 1}}) {
    NcclOptions options = Nccl(true);
    options.pack_bytes = 4096;
    NcclJob job(shape.size, shape.nodes, options);
    Launches packs("smddp_pack_");
    RunRanks(shape.size, [&](int rank) {
      std::mt19937 random(static_cast<unsigned>(shape.size));  // the same on all ranks
      for (int round = 0; round < 40; ++round) {
        std::vector<Shape> tensors{{2, 3}, {1, 1}};
        for (size_t more = random() % 5; more > 0; --more) {
          size_t rows = random() % 4 == 0 ? random() % 3 : random() % 600;
          size_t width = 1 + random() % 9;
          tensors.push_back({rows, width});
        }
        auto run = [&](auto value, DType dtype) {
          Scatter<decltype(value)>(&job, rank, shape.size, dtype, ReduceOp::kSum, tensors);
        };
        run(fake_nccl::Half{}, DType::kFloat16);
        run(int8_t{}, DType::kInt8);
        run(double{}, DType::kFloat64);
      }
    });
    EXPECT_EQ(job.group(0)->stats().packed, 120u);
    EXPECT(packs.count() > 2 * 120 * shape.size, std::to_string(packs.count()));
  }
}
