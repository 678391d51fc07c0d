// smddp_simulate: runs many schedules of simulated jobs and says which went wrong.
//
//   smddp_simulate --schedules 2000 --first-seed 1   so many, from this seed on
//   smddp_simulate --seed 1234 --verbose             one again, with all that happens
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "job.h"

namespace {

using smddp_sim::Job;
using smddp_sim::MakeProgram;
using smddp_sim::Program;

// A process runs so many schedules: what dead ranks leave is given back with it.
constexpr uint64_t kBlock = 250;
constexpr unsigned kScheduleLimitSeconds = 10;

struct Options {
  uint64_t first = 1, schedules = 1;
  int jobs = 1;
  bool verbose = false;
};

// What a process tells the one that started it.
struct Report {
  uint64_t seed;  // under way
  uint64_t done, failed, steps, preemptions;
  uint64_t collectives, ahead;  // of devices; of these: begun while another was under way
};

bool RunSchedule(uint64_t seed, bool verbose, Report* report) {
  Program program = MakeProgram(seed);
  if (verbose) std::printf("seed %lu: %s", seed, program.Describe().c_str());
  Job job(program, verbose);
  std::vector<std::string> complaints = job.Run();
  report->steps += job.steps();
  report->preemptions += job.preemptions();
  report->collectives += job.devices().collectives();
  report->ahead += job.devices().ahead();
  ++report->done;
  if (complaints.empty()) return true;
  ++report->failed;
  std::string text = "FAIL seed " + std::to_string(seed) + "\n";
  for (const std::string& complaint : complaints) text += "  " + complaint + "\n";
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  return false;
}

[[noreturn]] void RunBlock(uint64_t first, uint64_t end, bool verbose, Report* report) {
  if (!verbose) ::dup2(::open("/dev/null", O_WRONLY), STDERR_FILENO);
  for (uint64_t seed = first; seed < end; ++seed) {
    report->seed = seed;
    ::alarm(kScheduleLimitSeconds);
    RunSchedule(seed, verbose, report);
  }
  std::fflush(stdout);
  ::_exit(0);
}

// One process at a time, blocks first, first + stride, ...
class Worker {
 public:
  Worker(const Options& options, uint64_t first, uint64_t stride)
      : options_(options), next_(first), stride_(stride) {
    void* memory =
        ::mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    report_ = static_cast<Report*>(memory);
  }

  // False: there is nothing left to do.
  bool Start() {
    uint64_t last = options_.first + options_.schedules;
    if (from_ == to_) {
      if (next_ >= last) return false;
      from_ = next_;
      to_ = std::min(next_ + kBlock, last);
      next_ += stride_;
    }
    std::fflush(stdout);  // or the child would print it too
    pid_ = ::fork();
    if (pid_ == 0) RunBlock(from_, to_, options_.verbose, report_);
    return pid_ > 0;
  }

  void Ended(int status) {
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
      from_ = to_;
      return;
    }
    bool late = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
    std::printf("FAIL seed %lu\n  the process %s (status %d)\n", report_->seed,
                late ? "went on without end" : "crashed", status);
    ++report_->done;
    ++report_->failed;
    from_ = report_->seed + 1;
  }

  pid_t pid() const { return pid_; }
  const Report& report() const { return *report_; }

 private:
  const Options& options_;
  uint64_t next_, stride_, from_ = 0, to_ = 0;
  pid_t pid_ = -1;
  Report* report_;
};

int RunAll(const Options& options) {
  std::vector<Worker> workers;
  for (int j = 0; j < options.jobs; ++j) {
    workers.emplace_back(options, options.first + kBlock * j, kBlock * options.jobs);
  }
  size_t running = 0;
  for (Worker& worker : workers) running += worker.Start();
  while (running > 0) {
    int status = 0;
    pid_t pid = ::wait(&status);
    for (Worker& worker : workers) {
      if (worker.pid() != pid) continue;
      --running;
      worker.Ended(status);
      running += worker.Start();
    }
  }
  Report sum{};
  for (const Worker& worker : workers) {
    sum.done += worker.report().done;
    sum.failed += worker.report().failed;
    sum.steps += worker.report().steps;
    sum.preemptions += worker.report().preemptions;
    sum.collectives += worker.report().collectives;
    sum.ahead += worker.report().ahead;
  }
  bool wired = sum.preemptions > 0 || options.schedules == 1;
  if (!wired) std::printf("FAIL: no call of the library came to the scheduler\n");
  std::printf(
      "%lu schedules from seed %lu, %lu steps, %lu collectives by devices of which %lu "
      "began ahead: %lu failed\n",
      sum.done, options.first, sum.steps, sum.collectives, sum.ahead, sum.failed);
  return sum.failed == 0 && sum.done == options.schedules && wired ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i];
    bool has_value = i + 1 < argc;
    if (name == "--verbose") {
      options.verbose = true;
    } else if (name == "--seed" && has_value) {
      options.first = std::strtoull(argv[++i], nullptr, 10);
      options.schedules = 1;
    } else if (name == "--first-seed" && has_value) {
      options.first = std::strtoull(argv[++i], nullptr, 10);
    } else if (name == "--schedules" && has_value) {
      options.schedules = std::strtoull(argv[++i], nullptr, 10);
    } else if (name == "--jobs" && has_value) {
      options.jobs = std::max(1, std::atoi(argv[++i]));
    } else {
      std::fprintf(stderr,
                   "smddp_simulate: %s is not understood; --seed N, --schedules N, --first-seed N, "
                   "--jobs N and --verbose are\n",
                   name.c_str());
      return 2;
    }
  }
  return RunAll(options);
}
