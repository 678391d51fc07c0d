// SIGTERM: it wakes the monitor, and what was prepared is written before anything else.

#include "engine/watch/signals.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <tuple>
#include <utility>

#include "check.h"
#include "core/deadline.h"

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

// A process that SIGTERM ends: returns what it wrote to stderr before that.
template <typename Body>
std::string WordsOf(const Body& body) {
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
  EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, std::to_string(status));
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
