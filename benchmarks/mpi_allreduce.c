/* MPI_Allreduce of float32 sums, in place and out of place: what core_allreduce.cc does, by the MPI
   whose mpicc compiled it. A barrier precedes each timed call, and rank 0's times count. Each
   sample lies between two ping-pongs (ping_pong.h). */
#include <mpi.h>

#include "native_common.h"

static void Allreduce(const float* in, float* out, size_t count) {
  const void* source = in == out ? MPI_IN_PLACE : (const void*)in;
  MPI_Allreduce(source, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static double* Doubles(size_t count) {
  double* memory = (double*)malloc(count * sizeof(double));
  if (memory != NULL) return memory;
  fprintf(stderr, "no memory for %zu times\n", count);
  exit(1);
}

static void Measure(const struct BenchOptions* options, size_t bytes, int in_place, int rank,
                    int size, struct PingPong* ping_pong) {
  const size_t count = bytes / sizeof(float);
  float* out = BenchAllocate(bytes);
  float* in = in_place ? out : BenchAllocate(bytes);
  BenchFill(in, count, rank);
  Allreduce(in, out, count);
  BenchCheck(out, count, rank, size);
  memset(in, 0, bytes);

  const int repeats = BenchRepeats(bytes, options->scale);
  double *seconds = Doubles((size_t)repeats), *pings = Doubles(2 * (size_t)repeats);
  for (int i = -(repeats / 5 + 2); i < repeats; ++i) {
    const double before = PingPongMeasure(ping_pong);
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = BenchNow();
    Allreduce(in, out, count);
    const double took = BenchNow() - start;
    const double after = PingPongMeasure(ping_pong);
    if (i < 0) continue;
    seconds[i] = took;
    pings[2 * i] = before;
    pings[2 * i + 1] = after;
  }
  const char* mode = in_place ? "in" : "out";
  if (rank == 0 && size > 1) {
    BenchReportByDistance(options, "mpi", "raw", mode, bytes, size, seconds, pings, repeats);
  } else if (rank == 0) {
    BenchReport(options, "mpi", "raw", mode, bytes, size, seconds, repeats, "");
  }
  free(pings);
  free(seconds);
  if (!in_place) free(in);
  free(out);
}

int main(int argc, char** argv) {
  const struct BenchOptions options = BenchParse(argc, argv, kDefaultSizes);
  int rank = 0, size = 1;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  struct PingPong ping_pong = PingPongOpen(rank, size);
  for (int i = 0; i < options.num_sizes; ++i) {
    for (int in_place = 1; in_place >= 0; --in_place) {
      Measure(&options, options.sizes[i], in_place, rank, size, &ping_pong);
    }
  }
  MPI_Finalize();
  return 0;
}
