// The memory's own speed, with which an allreduce is compared: N threads, each on a core and on
// arrays of its own, pass over them once. Loops are plain and vectorised by the compiler, as in
// STREAM. Per thread and pass:
//   update  a = k * a      one array read and written where it lies: exactly what an in-place sum
//   cannot avoid copy    b = a          STREAM's copy add     c = a + b      STREAM's add, three
//   arrays
// A row's `med` is the seconds in which all threads read and write `bytes` once each at that
// kernel's speed.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "native_common.h"

namespace {

struct Kernel {
  const char* name;
  double arrays;  // read or written, by STREAM's count
  void (*pass)(float* __restrict a, float* __restrict b, float* __restrict c, size_t count);
};

void Update(float* __restrict a, float* __restrict, float* __restrict, size_t count) {
  for (size_t i = 0; i < count; ++i) a[i] *= 0.5f;
}

void Copy(float* __restrict a, float* __restrict b, float* __restrict, size_t count) {
  for (size_t i = 0; i < count; ++i) b[i] = a[i];
}

void Add(float* __restrict a, float* __restrict b, float* __restrict c, size_t count) {
  for (size_t i = 0; i < count; ++i) c[i] = a[i] + b[i];
}

constexpr Kernel kKernels[] = {{"update", 2, Update}, {"copy", 2, Copy}, {"add", 3, Add}};

void PinTo(int thread) {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  const int count = CPU_COUNT(&allowed);
  int skip = thread % std::max(count, 1);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || skip-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    // Unpinned threads only make the figure noisier, so a refusal is no error.
    (void)pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
    return;
  }
}

// Seconds of each pass, from the first thread's start to the last one's end.
std::vector<double> TimePasses(const Kernel& kernel, size_t bytes, int threads, int passes) {
  std::vector<std::vector<double>> starts(threads), ends(threads);
  std::atomic<int> arrived{0};
  auto work = [&](int thread) {
    PinTo(thread);
    float* a = BenchAllocate(bytes);  // by the thread that uses it, so on its own memory node
    float* b = BenchAllocate(bytes);
    float* c = BenchAllocate(bytes);
    for (int pass = 0; pass < passes; ++pass) {
      ++arrived;
      while (arrived.load() < threads * (pass + 1)) sched_yield();
      starts[thread].push_back(BenchNow());
      kernel.pass(a, b, c, bytes / sizeof(float));
      ends[thread].push_back(BenchNow());
    }
    free(a);
    free(b);
    free(c);
  };
  std::vector<std::thread> workers;
  for (int thread = 0; thread < threads; ++thread) workers.emplace_back(work, thread);
  for (std::thread& worker : workers) worker.join();

  std::vector<double> seconds;
  for (int pass = 1; pass < passes; ++pass) {  // the first pass warms up
    double start = starts[0][pass], end = ends[0][pass];
    for (int thread = 1; thread < threads; ++thread) {
      start = std::min(start, starts[thread][pass]);
      end = std::max(end, ends[thread][pass]);
    }
    seconds.push_back(end - start);
  }
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  const BenchOptions options =
      BenchParse(argc, argv, "1048576,16777216,102228128,134217728,437928960");
  for (int i = 0; i < options.num_sizes; ++i) {
    const size_t bytes = options.sizes[i];
    for (const Kernel& kernel : kKernels) {
      const int passes = 1 + BenchRepeats(bytes, options.scale);
      std::vector<double> seconds = TimePasses(kernel, bytes, options.threads, passes);
      for (double& pass : seconds) pass *= 2 / kernel.arrays;  // of one read and one write
      BenchReport(&options, "memory", "memory", kernel.name, bytes, options.threads, seconds.data(),
                  static_cast<int>(seconds.size()), "");
    }
  }
  return 0;
}
