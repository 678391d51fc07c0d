// SIGTERM: it wakes the monitor, and what was prepared is written before anything else.

#include "engine/watch/signals.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "check.h"
#include "core/deadline.h"
#include "engine/watch/monitor.h"

using namespace smddp;

TEST(TheMonitorIsWokenAndKeepsItsOwnTime) {
  auto wait = [](int milliseconds) {
    double begin = NowSeconds();
    bool came = WaitForTermination(milliseconds);
    return std::make_pair(came, NowSeconds() - begin);
  };
  wait(0);  // what earlier tests have left
  auto [came, seconds] = wait(30);
  EXPECT(!came && seconds >= 0.029, std::to_string(seconds));
  WakeMonitor();
  std::tie(came, seconds) = wait(5000);
  EXPECT(!came && seconds < 4, std::to_string(seconds));
  WatchTermination();
  ::raise(SIGTERM);
  std::tie(came, seconds) = wait(5000);
  EXPECT(came && seconds < 4, std::to_string(seconds));
  UnwatchTermination();
}

namespace {

// A process that a signal ends: returns what it wrote to stderr before that.
template <typename Body>
std::string WordsOf(const Body& body, int signal = SIGTERM) {
  int ends[2];
  EXPECT(::pipe(ends) == 0);
  pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    WatchTermination();
    body();
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string words;
  char text[256];
  for (ssize_t n; (n = ::read(ends[0], text, sizeof text)) > 0;) words.append(text, n);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == signal, std::to_string(status));
  return words;
}

}  // namespace

TEST(LastWordsAreWrittenAtOnce) {
  std::string words = WordsOf([] {
    PrepareLastWords("an operation that has ended\n");
    PrepareLastWords("waits for rank 1\n");
    ::raise(SIGTERM);
    if (!SaidLastWords()) ::_exit(1);
    PrepareLastWords("more\n");
    ::raise(SIGTERM);
    Terminate();
  });
  EXPECT_EQ(words, "waits for rank 1\n");
  EXPECT_EQ(WordsOf([] {
              PrepareLastWords("waits for rank 1\n");
              PrepareLastWords("");
              ::raise(SIGTERM);
              if (SaidLastWords()) ::_exit(1);
              Terminate();
            }),
            "");
}

namespace {

// A rank of which a thread stays inside MPI: nobody can look at its channels.
class OutOfSight : public Watched {
 public:
  using Look = std::function<void(Operation*, const std::vector<int>&)>;
  using LookAtPlan = std::function<void(const std::string&, double)>;

  bool InspectAll(double, const Look&) override {
    ++looks;
    while (holds) ::usleep(1000);
    return false;
  }
  void InspectPlans(double, const LookAtPlan&) override {}
  Status InspectCycles(double) override { return {}; }
  void FailAll(const Status&) override {}
  Timeline* timeline() override { return &timeline_; }
  std::string FlightRecord() const override { return "  #5 allreduce 'sum': under way\n"; }

  std::atomic<int> looks{0};
  std::atomic<bool> holds{false};  // the monitor, in a look

 private:
  Timeline timeline_;
};

// gcc's ThreadSanitizer runs handlers itself. In a child with a thread, which a process forks that
// has had many of them, it keeps a signal back that the child sends to itself.
bool HandlersRunInChildrenWithThreads() {
  static std::atomic<bool> ran{false};
  pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGUSR1, [](int) { ran = true; });
    std::atomic<bool> ends{false};
    std::thread other([&] {
      while (!ends) ::usleep(1000);
    });
    ::raise(SIGUSR1);
    ::usleep(10000);
    ends = true;
    other.join();
    ::_exit(ran ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

const char kWords[] =
    "smddp_tf error: ended by SIGTERM in the middle of a collective; a rank on another node may "
    "have ended: see the launcher's output; last collectives of this rank:\n"
    "  #5 allreduce 'sum': under way\n\n";

// The first of two nodes with a rank each gets SIGTERM when the monitor has looked so often.
std::string WordsOfARankInMpi(int looks, int then) {
  auto body = [&] {
    constexpr size_t kChunk = 4096;
    struct alignas(64) Line {
      char bytes[64];
    };
    std::vector<Line> memory(ShmGroup::BytesNeeded(1, kChunk) / sizeof(Line) + 1);
    ShmGroup shm(memory.data(), 0, 1, kChunk);
    Topology topology = Topology::FromKeys(0, std::vector<int>{0, 1});
    Config config;
    OutOfSight rank;
    Monitor monitor(&rank, config, topology, &shm, nullptr);
    monitor.Start();
    Deadline deadline(20);
    while (rank.looks < looks && !deadline.Passed()) ::usleep(1000);
    rank.holds = then == SIGKILL;  // so the monitor cannot end the process first
    ::raise(SIGTERM);
    if (then == SIGKILL) ::raise(then);
    ::sleep(20);
    ::_exit(2);
  };
  return WordsOf(body, then);
}

}  // namespace

TEST(LastWordsOfARankInsideMpi) {
  if (!HandlersRunInChildrenWithThreads()) {
    std::printf("skip the next one: a handler does not run in a forked child with threads here\n");
    return;
  }
  // The monitor had no time to look; it says so itself, once.
  EXPECT_EQ(WordsOfARankInMpi(0, SIGTERM), kWords);
  // It has looked: even if the launcher kills the rank at once.
  EXPECT_EQ(WordsOfARankInMpi(2, SIGKILL), kWords);
}
