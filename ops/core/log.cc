#include "core/log.h"

#include <atomic>

#include "core/log_writer.h"

namespace smddp {
namespace {

constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
std::atomic<int> log_level{static_cast<int>(LogLevel::kWarning)};
std::atomic<int> log_rank{-1};

}  // namespace

void SetLogLevel(const std::string& name) {
  for (int i = 0; i < 4; ++i) {
    if (name == kNames[i]) log_level = i;
  }
}

void SetLogRank(int rank) { log_rank = rank; }

bool LogEnabled(LogLevel level) { return static_cast<int>(level) >= log_level; }

std::string LogLine(LogLevel level, const std::string& text) {
  int rank = log_rank;
  std::string line = "smddp_tf";
  if (rank >= 0) line += "[rank " + std::to_string(rank) + "]";
  return line + " " + kNames[static_cast<int>(level)] + ": " + text + "\n";
}

void Log(LogLevel level, const std::string& text) {
  if (!LogEnabled(level)) return;
  if (size_t lost = TakeLostLines()) {
    WriteToStderr(LogLine(LogLevel::kWarning, std::to_string(lost) +
                                                  " messages were lost here, since nobody read "
                                                  "stderr"));
  }
  WriteToStderr(LogLine(level, text));
}

void FlushLog() { FlushStderr(); }

}  // namespace smddp
