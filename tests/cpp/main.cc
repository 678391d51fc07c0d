// Runs the registered tests: one line each, then "N passed, M failed". An argument keeps the tests
// whose name contains it, or those of the file with this name.
#include <dirent.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <vector>

#include "check.h"

namespace smddp_test {
namespace {

struct TestCase {
  std::string file;
  std::string name;
  std::function<void()> body;
};

constexpr int kMaxReportedFailures =
    20;  // of one test: a broken kernel fails in thousands of places
// A sanitizer makes everything ten times as slow.
#ifdef SMDDP_SANITIZED
constexpr unsigned kTestLimitSeconds = 1800;
#else
constexpr unsigned kTestLimitSeconds = 180;
#endif

std::vector<TestCase>& Tests() {
  static std::vector<TestCase> tests;
  return tests;
}

std::mutex failures_mutex;
int failures_of_test = 0;
char running[256] = "";

// The frames of the thread that gets it, as offsets for addr2line.
void OnShowStack(int) {
  constexpr int kMostFrames = 40;
  void* frames[kMostFrames];
  backtrace_symbols_fd(frames, backtrace(frames, kMostFrames), STDERR_FILENO);
}

// A hang must name its test, and where each thread is. What is called here need not be safe in a
// signal handler, as the process ends anyway; a second alarm ends it if that hangs too.
void OnAlarm(int) {
  signal(SIGALRM, SIG_DFL);
  alarm(10);
  dprintf(STDOUT_FILENO, "\nFAIL: time limit reached in %s\n", running);
  DIR* threads = opendir("/proc/self/task");
  for (const dirent* entry = nullptr;
       threads != nullptr && (entry = readdir(threads)) != nullptr;) {
    const long thread = atol(entry->d_name);
    if (thread == 0) continue;
    dprintf(STDERR_FILENO, "thread %ld:\n", thread);
    syscall(SYS_tgkill, getpid(), thread, SIGUSR2);
    usleep(20000);
  }
  _exit(3);
}

bool RunOne(const TestCase& test) {
  failures_of_test = 0;
  snprintf(running, sizeof(running), "%s", test.name.c_str());
  alarm(kTestLimitSeconds);
  const auto start = std::chrono::steady_clock::now();
  try {
    test.body();
  } catch (const std::exception& error) {
    RecordFailure(test.file.c_str(), 0, std::string("exception: ") + error.what());
  }
  alarm(0);
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  printf("%s %s (%.0f ms)\n", failures_of_test == 0 ? "ok  " : "FAIL", test.name.c_str(), ms);
  return failures_of_test == 0;
}

}  // namespace

bool Register(const char* file, const char* name, std::function<void()> body) {
  const char* base = strrchr(file, '/');
  Tests().push_back({file, std::string(base ? base + 1 : file) + "::" + name, std::move(body)});
  return true;
}

void RecordFailure(const char* file, int line, const std::string& what) {
  const std::lock_guard<std::mutex> lock(failures_mutex);
  if (++failures_of_test <= kMaxReportedFailures) printf("  %s:%d: %s\n", file, line, what.c_str());
}

}  // namespace smddp_test

int main(int argc, char** argv) {
  using smddp_test::TestCase;
  const std::string filter = argc > 1 ? argv[1] : "";
  setvbuf(stdout, nullptr, _IOLBF, 0);  // nothing that was said is lost in a hang
  signal(SIGALRM, smddp_test::OnAlarm);
  signal(SIGUSR2, smddp_test::OnShowStack);
  std::stable_sort(smddp_test::Tests().begin(), smddp_test::Tests().end(),
                   [](const TestCase& a, const TestCase& b) { return a.file < b.file; });
  const auto in_file = [&](const TestCase& test) { return test.name.rfind(filter + "::", 0) == 0; };
  const bool is_file = std::any_of(smddp_test::Tests().begin(), smddp_test::Tests().end(), in_file);
  int passed = 0;
  int failed = 0;
  for (const TestCase& test : smddp_test::Tests()) {
    if (!(is_file ? in_file(test) : test.name.find(filter) != std::string::npos)) continue;
    (smddp_test::RunOne(test) ? passed : failed) += 1;
  }
  printf("%d passed, %d failed\n", passed, failed);
  if (passed + failed == 0)
    printf("no test has '%s' in its file's name and its own\n", filter.c_str());
  // A filter that matches nothing is a mistake, not a success.
  return failed == 0 && passed > 0 ? 0 : 1;
}
