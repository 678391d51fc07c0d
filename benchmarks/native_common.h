/* What the native benchmarks share: options, exact data that differ between ranks, times, JSON
 * lines. C and C++. */
#ifndef SMDDP_BENCHMARKS_NATIVE_COMMON_H_
#define SMDDP_BENCHMARKS_NATIVE_COMMON_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ping_pong.h"

enum { kMaxSizes = 32, kPatternPeriod = 97 };

struct BenchOptions {
  size_t sizes[kMaxSizes]; /* bytes */
  int num_sizes;
  double scale;     /* multiplies how often a size is repeated */
  const char* json; /* rows are appended to this file; NULL: standard output only */
  int threads;      /* memory_limit only */
};

/* 1 KiB to 128 MiB, and the bytes of the gradients of ResNet-50 (102 MB) and of BERT-base (438 MB).
 */
static const char kDefaultSizes[] =
    "1024,4096,16384,65536,262144,1048576,4194304,16777216,67108864,102228128,134217728,437928960";

static inline void BenchParseSizes(const char* text, struct BenchOptions* options) {
  options->num_sizes = 0;
  while (*text != '\0' && options->num_sizes < kMaxSizes) {
    char* end = NULL;
    const size_t bytes = strtoull(text, &end, 10);
    if (end == text || bytes % sizeof(float) != 0) {
      fprintf(stderr, "--sizes takes multiples of 4 separated by commas, not '%s'\n", text);
      exit(2);
    }
    options->sizes[options->num_sizes++] = bytes;
    text = *end == ',' ? end + 1 : end;
  }
}

static inline struct BenchOptions BenchParse(int argc, char** argv, const char* default_sizes) {
  struct BenchOptions options;
  memset(&options, 0, sizeof(options));
  options.scale = 1;
  options.threads = 2;
  BenchParseSizes(default_sizes, &options);
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc) {
      fprintf(stderr, "%s needs a value\n", argv[i]);
      exit(2);
    }
    if (strcmp(argv[i], "--sizes") == 0) {
      BenchParseSizes(argv[i + 1], &options);
    } else if (strcmp(argv[i], "--scale") == 0) {
      options.scale = atof(argv[i + 1]);
    } else if (strcmp(argv[i], "--json") == 0) {
      options.json = argv[i + 1];
    } else if (strcmp(argv[i], "--threads") == 0) {
      options.threads = atoi(argv[i + 1]);
    } else {
      fprintf(stderr, "unknown option %s\n", argv[i]);
      exit(2);
    }
  }
  return options;
}

static inline double BenchNow(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline int BenchRepeats(size_t bytes, double scale) {
  int repeats = bytes <= (1u << 12)   ? 5000
                : bytes <= (1u << 16) ? 3000
                : bytes <= (1u << 20) ? 400
                : bytes <= (1u << 22) ? 120
                : bytes <= (1u << 24) ? 40
                                      : 10;
  repeats = (int)(repeats * scale);
  return repeats < 5 ? 5 : repeats;
}

/* Page-aligned and touched, so that no first touch falls into a timed call. */
static inline float* BenchAllocate(size_t bytes) {
  void* memory = NULL;
  if (posix_memalign(&memory, 4096, bytes) != 0) {
    fprintf(stderr, "no memory for %zu bytes\n", bytes);
    exit(1);
  }
  memset(memory, 0, bytes);
  return (float*)memory;
}

/* Element i of rank r holds (r + 1) * (1 + i % 97): all sums are small integers, exact in float32.
 */
static inline void BenchFill(float* data, size_t count, int rank) {
  for (size_t i = 0; i < count; ++i) data[i] = (float)(rank + 1) * (float)(1 + i % kPatternPeriod);
}

/* Ends the process where an element is not the sum over all ranks. */
static inline void BenchCheck(const float* data, size_t count, int rank, int size) {
  const float ranks = (float)(size * (size + 1) / 2);
  for (size_t i = 0; i < count; ++i) {
    const float want = ranks * (float)(1 + i % kPatternPeriod);
    if (data[i] != want) {
      fprintf(stderr, "rank %d: element %zu of %zu is %g, not %g\n", rank, i, count, data[i], want);
      exit(1);
    }
  }
}

static inline int BenchCompareTimes(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return x < y ? -1 : x > y;
}

static inline double BenchMedian(const double* sorted, int count) {
  return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

/* Writes one row; sorts `seconds`. algBw is bytes over time; busBw is what each link carries: algBw
 * * 2 (n - 1) / n. `more`: further members of the row, each with a comma before it. */
static inline void BenchReport(const struct BenchOptions* options, const char* lib,
                               const char* bench, const char* mode, size_t bytes, int np,
                               double* seconds, int count, const char* more) {
  qsort(seconds, (size_t)count, sizeof(double), BenchCompareTimes);
  const double median = BenchMedian(seconds, count);
  const double bandwidth = (double)bytes / median / 1e9;
  char row[2048];
  snprintf(row, sizeof(row),
           "{\"case\": \"%s.%s.%zu\", \"lib\": \"%s\", \"bench\": \"%s\", \"mode\": \"%s\", "
           "\"bytes\": %zu, \"np\": %d, \"med\": %.9f, \"p10\": %.9f, \"p90\": %.9f, \"min\": "
           "%.9f, \"n\": %d, \"algbw_gbs\": %.3f, \"busbw_gbs\": %.3f%s}\n",
           bench, mode, bytes, lib, bench, mode, bytes, np, median, seconds[(count - 1) / 10],
           seconds[(count - 1) * 9 / 10], seconds[0], count, bandwidth,
           bandwidth * 2 * (np - 1) / np, more);
  fputs(row, stdout);
  fflush(stdout);
  if (options->json == NULL) return;
  FILE* file = fopen(options->json, "a");
  if (file == NULL) {
    perror(options->json);
    exit(1);
  }
  fputs(row, file);
  fclose(file);
}

/* The same for samples that have a ping-pong before and one after them, in `pings`. Samples whose
 * distance changed are dropped. The row has the figures of the distance that most of the others
 * were taken at, and `by_distance` those of each. */
static inline void BenchReportByDistance(const struct BenchOptions* options, const char* lib,
                                         const char* bench, const char* mode, size_t bytes, int np,
                                         const double* seconds, const double* pings, int count) {
  double* kept = (double*)malloc((size_t)count * 2 * sizeof(double));
  char more[1024];
  int most = 0, dropped = count;
  size_t length = (size_t)snprintf(more, sizeof(more), ", \"by_distance\": {");
  if (kept == NULL) {
    fprintf(stderr, "no memory for %d times\n", count);
    exit(1);
  }
  double* best = kept + count;
  const char* distance = NULL;
  double ping = 0;
  for (int d = 0; d < kDistances; ++d) {
    int n = 0;
    double least = 0;
    for (int i = 0; i < count; ++i) {
      const double before = pings[2 * i], after = pings[2 * i + 1];
      if (PingPongDistance(before) != d || PingPongDistance(after) != d) continue;
      if (n == 0 || before < least) least = before;
      kept[n++] = seconds[i];
    }
    if (n == 0) continue;
    dropped -= n;
    qsort(kept, (size_t)n, sizeof(double), BenchCompareTimes);
    length +=
        (size_t)snprintf(more + length, sizeof(more) - length,
                         "%s\"%s\": {\"med\": %.9f, \"p10\": %.9f, \"p90\": %.9f, \"n\": %d, "
                         "\"ping_pong_ns\": %.0f}",
                         distance == NULL ? "" : ", ", kDistanceNames[d], BenchMedian(kept, n),
                         kept[(n - 1) / 10], kept[(n - 1) * 9 / 10], n, least);
    if (n > most) {
      memcpy(best, kept, (size_t)n * sizeof(double));
      most = n;
      ping = least;
      distance = kDistanceNames[d];
    }
  }
  if (most == 0) {
    fprintf(stderr, "%s.%s.%zu: the cores moved during every sample\n", bench, mode, bytes);
  } else {
    snprintf(more + length, sizeof(more) - length,
             "}, \"distance\": \"%s\", \"ping_pong_ns\": %.0f, \"dropped\": %d", distance, ping,
             dropped);
    BenchReport(options, lib, bench, mode, bytes, np, best, most, more);
  }
  free(kept);
}

#endif /* SMDDP_BENCHMARKS_NATIVE_COMMON_H_ */
