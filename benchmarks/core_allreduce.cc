// The library's float32 sum without TensorFlow, through its C interface: in place and out of place,
// one rank a process. mpi_allreduce.c does the same with MPI_Allreduce. A barrier precedes each
// timed call, and rank 0's times count. Each sample lies between two ping-pongs (ping_pong.h).
#include <vector>

#include "capi/smddp.h"
#include "native_common.h"

namespace {

// TensorFlow's DT_FLOAT and the library's Sum, the numbers that its C interface takes.
constexpr int kFloat = 1;
constexpr int kSum = 1;

void Require(int code, const char* what) {
  if (code == 0) return;
  fprintf(stderr, "rank %d: %s failed: %s\n", smddp_rank(), what, smddp_last_error());
  smddp_shutdown(1);
  exit(1);
}

void Allreduce(const float* in, float* out, size_t count) {
  Require(smddp_allreduce(in, out, static_cast<int64_t>(count), kFloat, kSum, 1.0, 1.0, "bench"),
          "allreduce");
}

void Measure(const BenchOptions& options, size_t bytes, bool in_place, PingPong* ping_pong) {
  const size_t count = bytes / sizeof(float);
  const int rank = smddp_rank(), size = smddp_size();
  float* out = BenchAllocate(bytes);
  float* in = in_place ? out : BenchAllocate(bytes);
  BenchFill(in, count, rank);
  Allreduce(in, out, count);
  BenchCheck(out, count, rank, size);
  // Repeated sums in place would grow without end; zeros cost the same.
  memset(in, 0, bytes);

  const int repeats = BenchRepeats(bytes, options.scale);
  std::vector<double> seconds, pings;
  for (int i = -(repeats / 5 + 2); i < repeats; ++i) {
    const double before = PingPongMeasure(ping_pong);
    Require(smddp_barrier("bench"), "barrier");
    const double start = BenchNow();
    Allreduce(in, out, count);
    const double took = BenchNow() - start;
    const double after = PingPongMeasure(ping_pong);
    if (i < 0) continue;
    seconds.push_back(took);
    pings.insert(pings.end(), {before, after});
  }
  const char* mode = in_place ? "in" : "out";
  if (rank == 0 && size > 1) {
    BenchReportByDistance(&options, "smddp", "raw", mode, bytes, size, seconds.data(), pings.data(),
                          repeats);
  } else if (rank == 0) {
    BenchReport(&options, "smddp", "raw", mode, bytes, size, seconds.data(), repeats, "");
  }
  if (!in_place) free(in);
  free(out);
}

}  // namespace

int main(int argc, char** argv) {
  const BenchOptions options = BenchParse(argc, argv, kDefaultSizes);
  Require(smddp_init(), "init");
  PingPong ping_pong = PingPongOpen(smddp_rank(), smddp_size());
  for (int i = 0; i < options.num_sizes; ++i) {
    for (const bool in_place : {true, false}) {
      Measure(options, options.sizes[i], in_place, &ping_pong);
    }
  }
  Require(smddp_shutdown(0), "shutdown");
  return 0;
}
