// Runs the registered tests: one line each, then "N passed, M failed". An argument keeps the tests
// whose name contains it.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
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

// A hang must name its test. Only async-signal-safe calls here.
void OnAlarm(int) {
  const char text[] = "\nFAIL: time limit reached in ";
  ssize_t ignored = write(STDOUT_FILENO, text, sizeof(text) - 1);
  ignored = write(STDOUT_FILENO, running, strlen(running));
  ignored = write(STDOUT_FILENO, "\n", 1);
  static_cast<void>(ignored);
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
  fflush(stdout);
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

void RunRanks(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.emplace_back(body, rank);
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace smddp_test

int main(int argc, char** argv) {
  using smddp_test::TestCase;
  const std::string filter = argc > 1 ? argv[1] : "";
  signal(SIGALRM, smddp_test::OnAlarm);
  std::stable_sort(smddp_test::Tests().begin(), smddp_test::Tests().end(),
                   [](const TestCase& a, const TestCase& b) { return a.file < b.file; });
  int passed = 0;
  int failed = 0;
  for (const TestCase& test : smddp_test::Tests()) {
    if (test.name.find(filter) == std::string::npos) continue;
    (smddp_test::RunOne(test) ? passed : failed) += 1;
  }
  printf("%d passed, %d failed\n", passed, failed);
  // A filter that matches nothing is a mistake, not a success.
  return failed == 0 && passed > 0 ? 0 : 1;
}
