// Minima and maxima of what has NaNs: a NaN of any rank is every rank's result, in the same bits,
// whichever ranks have one.
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "check.h"
#include "core/ranges.h"
#include "inproc_job.h"
#include "kernels/cpu/reduce.h"
#include "kernels/half.h"

namespace {

using namespace smddp;
using smddp_test::InprocJob;
using smddp_test::kChunk;
using smddp_test::kJobs;
using smddp_test::RunRanks;
using Shape = smddp_test::JobShape;
using Bytes = std::vector<char>;

struct Format {
  DType dtype;
  uint64_t infinity, quiet_nan;
};
constexpr Format kFloat32 = {DType::kFloat32, 0x7f800000, 0x7fc00000};
constexpr Format kFormats[] = {kFloat32,
                               {DType::kFloat64, 0x7ff0000000000000, 0x7ff8000000000000},
                               {DType::kFloat16, 0x7c00, 0x7e00},
                               {DType::kBfloat16, 0x7f80, 0x7fc0}};

size_t SizeOf(const Format& format) { return Info(format.dtype).size; }

uint64_t NumberBits(DType dtype, int number) {
  float value = static_cast<float>(number);
  double wide = value;
  uint64_t bits;
  std::memcpy(&bits, &wide, sizeof bits);
  if (dtype == DType::kFloat64) return bits;
  if (dtype == DType::kFloat32) return ToBits(value);
  return dtype == DType::kFloat16 ? FloatToHalf(value) : FloatToBfloat16(value);
}

uint64_t BitsAt(const Format& format, const Bytes& bytes, size_t i) {
  uint64_t bits = 0;
  std::memcpy(&bits, bytes.data() + i * SizeOf(format), SizeOf(format));
  return bits;
}

// Rank r has a NaN of its own where bit r of i is set, and r + 1 elsewhere.
Bytes Input(const Format& format, int rank, size_t begin, size_t count) {
  Bytes bytes(count * SizeOf(format));
  for (size_t i = 0; i < count; ++i) {
    bool is_nan = (begin + i) >> rank & 1;
    uint64_t nan = format.quiet_nan | static_cast<uint64_t>(rank + 1);
    uint64_t bits = is_nan ? nan : NumberBits(format.dtype, rank + 1);
    std::memcpy(bytes.data() + i * SizeOf(format), &bits, SizeOf(format));
  }
  return bytes;
}

// Of the results of `size` ranks' Input(): the place of the first that is not what it must be, and
// its bits; empty if there is none.
std::string FirstWrong(const Format& format, bool is_min, int size, size_t begin,
                       const Bytes& results) {
  uint64_t number = NumberBits(format.dtype, is_min ? 1 : size);
  uint64_t sign = uint64_t{1} << (8 * SizeOf(format) - 1);
  for (size_t i = 0; i < results.size() / SizeOf(format); ++i) {
    uint64_t bits = BitsAt(format, results, i);
    bool has_nan = (begin + i) % (size_t{1} << size) != 0;
    if (has_nan ? (bits & ~sign) > format.infinity : bits == number) continue;
    return (is_min ? "min, element " : "max, element ") + std::to_string(begin + i) + ", dtype " +
           std::to_string(static_cast<int>(format.dtype)) + ", bits " + std::to_string(bits);
  }
  return "";
}

void Run(const Format& format, Combine combine, ReduceStage stage,
         const std::vector<const void*>& sources, size_t count, void* out) {
  ReduceArgs args;
  args.sources = sources.data();
  args.num_sources = static_cast<int>(sources.size());
  args.count = count;
  args.out = out;
  FindReduce(format.dtype, combine, stage)(args);
}

// In one stage, and in two as between nodes: the first source, the others, then both.
void CheckKernel(const Format& format, bool is_min, int size, size_t begin, size_t count) {
  Combine combine = is_min ? Combine::kMin : Combine::kMax;
  std::vector<Bytes> inputs;
  std::vector<const void*> sources;
  for (int r = 0; r < size; ++r) inputs.push_back(Input(format, r, begin, count));
  for (const Bytes& input : inputs) sources.push_back(input.data());
  Bytes at_once(count * SizeOf(format)), in_stages(at_once.size());
  Run(format, combine, ReduceStage::kFull, sources, count, at_once.data());

  Bytes first(count * Info(format.dtype).accum_size), others(first.size());
  Run(format, combine, ReduceStage::kPartial, {sources[0]}, count, first.data());
  sources.erase(sources.begin());
  Run(format, combine, ReduceStage::kPartial, sources, count, others.data());
  Run(format, combine, ReduceStage::kFinish, {first.data(), others.data()}, count,
      in_stages.data());
  std::string note = IsaName() + std::string(" of ") + std::to_string(size);
  EXPECT_EQ(FirstWrong(format, is_min, size, begin, at_once), "", note);
  EXPECT_EQ(FirstWrong(format, is_min, size, begin, in_stages), "", note + " in stages");
}

// Runs the request on every rank, on elements that begin with `begin`.
void CheckJob(InprocJob* job, const Format& format, Kind kind, bool is_min, int size, size_t begin,
              size_t count, const std::string& forced) {
  std::vector<Bytes> results(static_cast<size_t>(size));
  std::string note = std::string(KindName(kind)) + " " + forced + " of " + std::to_string(count) +
                     " on " + std::to_string(size);
  RunRanks(size, [&](int rank) {
    Bytes in = Input(format, rank, begin, count);
    Range own{0, count};
    if (kind == Kind::kReduceScatter) own = RowsOf(static_cast<int64_t>(count), size, rank);
    Bytes& out = results[static_cast<size_t>(rank)];
    out.resize(own.size() * SizeOf(format));
    Request request;
    request.kind = kind;
    request.dtype = format.dtype;
    request.op = is_min ? ReduceOp::kMin : ReduceOp::kMax;
    request.name = "x";
    request.tensors = {{in.data(), out.data(), {static_cast<int64_t>(count)}}};
    Status status = job->Run(rank, request, forced);
    ASSERT(status.ok(), status.message());
    EXPECT_EQ(FirstWrong(format, is_min, size, begin + own.begin, out), "", note);
  });
  for (const Bytes& result : results) {
    EXPECT(kind == Kind::kReduceScatter || result == results[0], note + ": the ranks' bits");
  }
}

// Every set of ranks that have a NaN in a long payload, and each rank alone in short ones.
void CheckEverySet(InprocJob* job, const Format& format, Kind kind, int size,
                   const std::string& forced) {
  for (bool is_min : {true, false}) {
    CheckJob(job, format, kind, is_min, size, 0, 4099, forced);
    for (int r = 0; r < size; ++r) {
      size_t begin = size_t{1} << r;
      CheckJob(job, format, kind, is_min, size, begin, 1, forced);
      CheckJob(job, format, kind, is_min, size, begin, 5, forced);
    }
  }
}

}  // namespace

TEST(EveryIsaKeepsNaNsOfMinimaAndMaxima) {
  std::istringstream levels(CompiledIsas());
  for (std::string isa; levels >> isa;) {
    SetIsa(isa);
    for (const Format& format : kFormats) {
      for (int size : {2, 3, 5}) {
        for (bool is_min : {true, false}) {
          for (int r = 0; r < size; ++r) CheckKernel(format, is_min, size, size_t{1} << r, 1);
          for (size_t count : {7, 40, 1029}) CheckKernel(format, is_min, size, 0, count);
        }
      }
    }
  }
  SetIsa("");
}

TEST(ANaNOfAnyRankIsTheMinimumAndTheMaximum) {
  for (const Shape& shape : kJobs) {
    InprocJob job(shape.size, shape.nodes, kChunk);
    for (const Format& format : kFormats) {
      CheckEverySet(&job, format, Kind::kAllreduce, shape.size, "");
      CheckEverySet(&job, format, Kind::kReduceScatter, shape.size, "");
    }
  }
}

TEST(EveryAlgorithmKeepsNaNs) {
  for (const Shape& shape : kJobs) {
    if (shape.nodes > 1) continue;
    InprocJob job(shape.size, 1, kChunk);
    for (const char* forced : {"oneshot", "shm", "handback"}) {
      CheckEverySet(&job, kFloat32, Kind::kAllreduce, shape.size, forced);
    }
  }
}
